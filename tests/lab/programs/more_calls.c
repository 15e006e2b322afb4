// SPDX-License-Identifier: LGPL-2.1-or-later
/* Other system calls than those of calls.c: of kinds that it has none of, and other ways through some that it has. */
#include "calls.h"

#include <arpa/inet.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>

static char bytes[1 << 16];

static void make_ipc_calls(void)
{
	struct sembuf up = { 0, 1, IPC_NOWAIT }, down = { 0, -5, IPC_NOWAIT };
	struct {
		long kind;
		char text[64];
	} message = { 1, "text" };
	struct mq_attr attributes = { .mq_maxmsg = 4, .mq_msgsize = 64 };
	int queue, sets, segment;
	char *area;

	queue = CALL(msgget(IPC_PRIVATE, IPC_CREAT | 0600));
	CALL(msgsnd(queue, &message, 10, 0));
	CALL(msgsnd(queue, &message, 60, IPC_NOWAIT));
	CALL(msgrcv(queue, &message, 64, 2, IPC_NOWAIT));
	CALL(msgrcv(queue, &message, 5, 1, MSG_NOERROR));
	CALL(msgrcv(queue, &message, 1, -3, IPC_NOWAIT));
	CALL(msgctl(queue, IPC_STAT, (void *)bytes));
	CALL(msgctl(queue, IPC_RMID, NULL));
	CALL(msgsnd(queue, &message, 10, 0));
	sets = CALL(semget(IPC_PRIVATE, 3, IPC_CREAT | 0600));
	CALL(semget(77, 3, 0));
	CALL(semop(sets, &up, 1));
	CALL(semop(sets, &down, 1));
	CALL(semtimedop(sets, &down, 1, &(struct timespec){ 0, -7 }));
	CALL(semctl(sets, 0, GETVAL));
	CALL(semctl(sets, 7, GETVAL));
	CALL(semctl(sets, 0, SETVAL, 40000));
	CALL(semctl(sets, 0, IPC_RMID));
	segment = CALL(shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600));
	area = (char *)CALL(shmat(segment, NULL, 0));
	/* The kernel may be without System V IPC. */
	if (area != (char *)-1)
		CALL(area[4096] = 1);
	CALL(shmat(segment, (void *)1, 0));
	CALL(shmctl(segment, IPC_STAT, (void *)bytes));
	CALL(shmctl(segment, IPC_RMID, NULL));
	CALL(shmdt(area));
	CALL(shmdt(area));
	queue = CALL(mq_open("/queue", O_RDWR | O_CREAT | O_NONBLOCK, 0600, &attributes));
	CALL(mq_open("/none", O_RDWR));
	CALL(mq_send(queue, bytes, 10, 3));
	CALL(mq_send(queue, bytes, 10, 9));
	CALL(mq_send(queue, bytes, 65, 3));
	CALL(mq_receive(queue, bytes, 64, NULL));
	CALL(mq_receive(queue, bytes, 10, NULL));
	CALL(mq_getattr(queue, &attributes));
	CALL(mq_unlink("/queue"));
}

static void make_network_calls(void)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons(7001) };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7002) };
	struct sockaddr_ll link = { .sll_family = AF_PACKET, .sll_protocol = htons(3), .sll_ifindex = 1 };
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct sock_filter every = BPF_STMT(BPF_RET | BPF_K, 0xffff);
	struct sock_filter broken = BPF_STMT(0xffff, 0);
	struct sock_fprog program = { 1, &every }, wrong = { 1, &broken };
	struct {
		struct nlmsghdr header;
		struct rtgenmsg general;
	} request = { { sizeof(request), RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0 }, { AF_UNSPEC } };
	struct ifreq interface = { .ifr_name = "lo" };
	struct iovec parts[2] = { { bytes, 10 }, { bytes + 100, 20 } };
	struct mmsghdr several[2] = { { { .msg_iov = parts, .msg_iovlen = 2 } }, { { .msg_iov = parts, .msg_iovlen = 1 } } };
	struct pollfd polled;
	int server, client, other, raw, route, on = 1, pair[2];
	socklen_t size = sizeof(bytes);

	server = CALL(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CALL(ioctl(server, SIOCGIFFLAGS, &interface));
	interface.ifr_flags |= IFF_UP;
	CALL(ioctl(server, SIOCSIFFLAGS, &interface));
	CALL(ioctl(server, SIOCGIFMTU, &interface));
	CALL(ioctl(server, SIOCGIFCONF, &(struct ifconf){ sizeof(bytes), { bytes } }));
	CALL(setsockopt(server, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)));
	CALL(bind(server, (void *)&six, sizeof(six)));
	CALL(listen(server, 1));
	client = CALL(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CALL(setsockopt(client, IPPROTO_TCP, TCP_CONGESTION, "none", 4));
	CALL(setsockopt(client, IPPROTO_TCP, TCP_MAXSEG, &on, sizeof(on)));
	CALL(connect(client, (void *)&six, sizeof(six)));
	polled = (struct pollfd){ client, POLLOUT | POLLIN, 0 };
	CALL(poll(&polled, 1, 10));
	other = CALL(accept(server, NULL, NULL));
	CALL(send(client, bytes, 30000, MSG_NOSIGNAL));
	CALL(ioctl(client, SIOCOUTQ, &on));
	CALL(recv(other, bytes, 100, MSG_PEEK));
	CALL(recv(other, bytes, 50000, 0));
	CALL(recv(other, bytes, 10, MSG_OOB));
	CALL(send(other, "!", 1, MSG_OOB));
	CALL(getsockopt(client, IPPROTO_TCP, TCP_INFO, bytes, &size));
	CALL(shutdown(client, SHUT_RDWR));
	CALL(recv(other, bytes, 10, 0));
	CALL(send(other, bytes, 10, MSG_NOSIGNAL));
	CALL(close(other));
	CALL(close(client));
	client = CALL(socket(AF_INET, SOCK_DGRAM, 0));
	CALL(setsockopt(client, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
	CALL(setsockopt(client, SOL_SOCKET, SO_ATTACH_FILTER, &wrong, sizeof(wrong)));
	CALL(setsockopt(client, IPPROTO_UDP, UDP_CORK, &on, sizeof(on)));
	CALL(bind(client, (void *)&four, sizeof(four)));
	CALL(connect(client, (void *)&four, sizeof(four)));
	CALL(sendmmsg(client, several, 2, 0));
	on = 0;
	CALL(setsockopt(client, IPPROTO_UDP, UDP_CORK, &on, sizeof(on)));
	CALL(recvmmsg(client, several, 2, MSG_DONTWAIT, NULL));
	CALL(sendto(client, bytes, 65530, 0, NULL, 0));
	CALL(connect(client, (void *)&(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr)));
	CALL(send(client, bytes, 10, 0));
	raw = CALL(socket(AF_PACKET, SOCK_RAW, htons(3)));
	CALL(bind(raw, (void *)&link, sizeof(link)));
	CALL(sendto(raw, bytes, 100, 0, (void *)&link, sizeof(link)));
	CALL(recv(raw, bytes, 1000, MSG_DONTWAIT));
	CALL(setsockopt(raw, SOL_PACKET, PACKET_VERSION, &(int){ 2 }, sizeof(int)));
	CALL(setsockopt(raw, SOL_PACKET, PACKET_RX_RING, bytes, 4));
	raw = CALL(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	CALL(sendto(raw, "\10\0\0\0\0\0\0\0", 8, 0, (void *)&four, sizeof(four)));
	CALL(recv(raw, bytes, 1000, MSG_DONTWAIT));
	route = CALL(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
	CALL(bind(route, (void *)&kernel, sizeof(kernel)));
	CALL(send(route, &request, sizeof(request), 0));
	CALL(recv(route, bytes, sizeof(bytes), MSG_DONTWAIT));
	request.header.nlmsg_type = RTM_GETROUTE;
	CALL(send(route, &request, sizeof(request), 0));
	request.header.nlmsg_len = 5;
	CALL(send(route, &request, sizeof(request), 0));
	CALL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	CALL(send(pair[0], bytes, 100, MSG_EOR));
	CALL(recv(pair[1], bytes, 10, MSG_TRUNC));
	{
		char control[CMSG_SPACE(sizeof(int))] = { 0 };
		struct msghdr message = {
			.msg_iov = parts, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
		};
		struct cmsghdr *passed = CMSG_FIRSTHDR(&message);

		*passed = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(passed), &route, sizeof(int));
		CALL(sendmsg(pair[0], &message, 0));
		CALL(recvmsg(pair[1], &message, 0));
	}
	CALL(socket(AF_VSOCK, SOCK_STREAM, 0));
}

static void make_task_calls(void)
{
	struct timex clock = { 0 };
	struct itimerval when = { { 0, 0 }, { 100, 0 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct sched_param parameter = { 0 };
	struct iovec local = { bytes, 100 }, remote = { bytes + 200, 100 };
	siginfo_t info;
	stack_t stack = { bytes, 0, sizeof(bytes) };
	sigset_t set;
	int child, descriptor, timer, word = 0;

	signal(SIGUSR1, SIG_IGN);
	child = fork();
	if (!child) {
		/* KCOV is not enabled for the child. */
		for (;;)
			pause();
	}
	descriptor = CALL(syscall(SYS_pidfd_open, child, 0));
	CALL(syscall(SYS_pidfd_open, -5, 0));
	CALL(syscall(SYS_pidfd_send_signal, descriptor, SIGUSR1, NULL, 0));
	CALL(syscall(SYS_pidfd_getfd, descriptor, 0, 0));
	CALL(syscall(SYS_kcmp, getpid(), child, 0, 0, 0));
	CALL(process_vm_readv(child, &local, 1, &remote, 1, 0));
	CALL(process_vm_writev(child, &local, 1, &(struct iovec){ (void *)1, 5 }, 1, 0));
	CALL(sched_setscheduler(child, SCHED_BATCH, &parameter));
	CALL(sched_setscheduler(child, 77, &parameter));
	CALL(sched_getparam(child, &parameter));
	CALL(setpriority(PRIO_USER, 0, 3));
	CALL(getpriority(PRIO_PGRP, 0));
	CALL(setpgid(child, child));
	CALL(getsid(child));
	CALL(kill(-child, 0));
	CALL(kill(child, SIGKILL));
	CALL(syscall(SYS_waitid, P_PIDFD, descriptor, &info, WEXITED | WNOHANG, NULL));
	CALL(waitpid(child, NULL, 0));
	CALL(kill(child, 0));
	CALL(ptrace(PTRACE_ATTACH, 1, NULL, NULL));
	CALL(ptrace(PTRACE_PEEKDATA, 2, NULL, NULL));
	CALL(syscall(SYS_set_robust_list, bytes, 24));
	CALL(syscall(SYS_rseq, bytes, 3, 0, 0));
	CALL(syscall(SYS_futex, &word, FUTEX_CMP_REQUEUE, 1, 1, &word + 1, 0));
	CALL(syscall(SYS_futex, &word, FUTEX_LOCK_PI, 0, NULL, NULL, 0));
	CALL(syscall(SYS_futex, &word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
	CALL(syscall(SYS_futex, &word, FUTEX_WAKE_OP, 1, 1, bytes, 0x1000001));
	CALL(syscall(SYS_futex, 1, FUTEX_WAKE, 1, NULL, NULL, 0));
	CALL(adjtimex(&clock));
	CALL(setitimer(ITIMER_REAL, &when, NULL));
	CALL(getitimer(ITIMER_PROF, &when));
	CALL(alarm(0));
	CALL(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer));
	CALL(syscall(SYS_timer_settime, timer, 0, &(struct itimerspec){ { 0, 0 }, { 50, 0 } }, NULL));
	CALL(syscall(SYS_timer_gettime, timer, bytes));
	CALL(syscall(SYS_timer_getoverrun, timer));
	CALL(syscall(SYS_timer_delete, timer));
	CALL(syscall(SYS_timer_delete, 99));
	CALL(sigaltstack(&stack, NULL));
	CALL(sigaltstack(&(stack_t){ bytes, 0, 10 }, NULL));
	sigemptyset(&set);
	CALL(sigpending(&set));
	CALL(syscall(SYS_rt_sigqueueinfo, getpid(), SIGUSR1, &info));
	CALL(personality(0xffffffff));
	CALL(personality(ADDR_NO_RANDOMIZE));
	CALL(unshare(CLONE_NEWUTS));
	CALL(unshare(CLONE_NEWIPC | CLONE_FS));
	CALL(unshare(CLONE_PARENT));
	CALL(sethostname("guest", 5));
	CALL(setns(descriptor, CLONE_NEWUTS));
	CALL(syscall(SYS_capget, (int[]){ 0x20080522, 0 }, bytes));
	CALL(syscall(SYS_capset, (int[]){ 5, 0 }, bytes));
	CALL(setresuid(-1, -1, 5));
	CALL(setresgid(-1, 5, -1));
	CALL(setgroups(2, (gid_t[]){ 4, 5 }));
	CALL(getgroups(1, (gid_t[1]){ 0 }));
	CALL(syscall(SYS_prlimit64, 0, RLIMIT_CORE, &(struct rlimit){ 5, 1 }, NULL));
	CALL(syscall(SYS_getcpu, &word, NULL, NULL));
#ifdef __x86_64__
	CALL(syscall(SYS_arch_prctl, 0x1003, bytes));
	CALL(syscall(SYS_modify_ldt, 0, bytes, 100));
#endif
	CALL(syscall(SYS_ioprio_get, 1, 0));
	CALL(syscall(SYS_acct, "/none"));
	CALL(syscall(SYS_syslog, 10, NULL, 0));
	CALL(syscall(SYS_reboot, 1, 2, 3, 4));
	CALL(syscall(SYS_init_module, bytes, 100, ""));
	CALL(syscall(SYS_delete_module, "none", 0));
	CALL(syscall(SYS_bpf, 0, bytes, 40));
	CALL(syscall(SYS_perf_event_open, bytes, 0, -1, -1, 0));
	CALL(syscall(SYS_keyctl, 0, -1, 1));
	CALL(syscall(SYS_seccomp, 2, 0, bytes));
	CALL(syscall(SYS_userfaultfd, 1));
	CALL(syscall(SYS_io_uring_setup, 4, bytes + 4096));
}

static void make_more_file_calls(void)
{
	static char aio[256];
	struct iovec parts[3] = { { bytes, 5000 }, { bytes + 6000, 0 }, { bytes + 7000, 1000 } };
	char *area;
	int file, other, folder, pair[2], master, slave, watcher;
	unsigned long context = 0;
	void *control = aio;

	mkdir("/tmp/b", 0755);
	folder = CALL(open("/tmp/b", O_PATH | O_DIRECTORY));
	file = CALL(openat(folder, "file", O_RDWR | O_CREAT, 0600));
	CALL(openat(folder, "../../etc", O_RDONLY));
	CALL(syscall(SYS_openat2, folder, "file", (uint64_t[3]){ 0, 0, 8 }, 24));
	CALL(syscall(SYS_openat2, folder, "../file", (uint64_t[3]){ 0, 0, 8 }, 24));
	CALL(syscall(SYS_openat2, folder, "file", (uint64_t[3]){ 0, 0, 0 }, 3));
	CALL(openat(AT_FDCWD, "/tmp/b", O_TMPFILE | O_RDWR, 0600));
	CALL(syscall(SYS_name_to_handle_at, folder, "file", bytes, bytes + 200, 0));
	CALL(pwritev(file, parts, 3, 4000));
	CALL(preadv2(file, parts, 3, 0, RWF_NOWAIT));
	CALL(pwritev2(file, parts, 3, 10, 0x4000));
	CALL(syscall(SYS_statx, folder, "file", 0, 0xfff, bytes));
	CALL(syscall(SYS_statx, file, "", AT_EMPTY_PATH, 0xfff, bytes));
	CALL(syscall(SYS_faccessat2, folder, "file", W_OK, AT_EACCESS));
	CALL(fchmodat(folder, "file", 0644, 0));
	CALL(fchownat(folder, "file", 7, 7, AT_SYMLINK_NOFOLLOW));
	CALL(linkat(folder, "file", folder, "link", 0));
	CALL(symlinkat("file", folder, "soft"));
	CALL(readlinkat(folder, "soft", bytes, 2));
	CALL(lseek(file, 0, SEEK_HOLE));
	CALL(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
	CALL(readahead(file, 0, 4096));
	CALL(sync_file_range(file, 0, 100, SYNC_FILE_RANGE_WRITE));
	CALL(fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
	CALL(fallocate(file, FALLOC_FL_KEEP_SIZE, 100000, 4096));
	CALL(fdatasync(file));
	CALL(fgetxattr(file, "security.x", bytes, 100));
	CALL(fsetxattr(file, "trusted.x", "1", 1, XATTR_REPLACE));
	CALL(fremovexattr(file, "trusted.x"));
	CALL(syscall(SYS_renameat2, folder, "file", folder, "link", 2));
	CALL(syscall(SYS_renameat2, folder, "file", folder, "none", 1));
	CALL(renameat(folder, "none", folder, "file"));
	CALL(unlinkat(folder, "soft", 0));
	CALL(unlinkat(AT_FDCWD, "/tmp/b", AT_REMOVEDIR));
	CALL(fcntl(file, F_GETLK, &(struct flock){ .l_type = F_RDLCK, .l_whence = SEEK_END }));
	CALL(fcntl(file, F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 3 }));
	CALL(fcntl(file, F_SETLEASE, F_RDLCK));
	CALL(fcntl(file, F_NOTIFY, DN_MODIFY));
	CALL(fcntl(file, F_SETOWN, getpid()));
	CALL(fcntl(file, F_ADD_SEALS, 1));
	CALL(flock(file, LOCK_SH));
	CALL(flock(file, LOCK_UN));
	area = (char *)CALL(mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	CALL(area[0]++);
	CALL(msync(area, 4096, MS_ASYNC | MS_INVALIDATE));
	CALL(madvise(area, 4096, MADV_REMOVE));
	CALL(madvise(area, 16384, MADV_PAGEOUT));
	CALL(mremap(area, 16384, 4096, 0));
	CALL(remap_file_pages(area, 4096, 0, 1, 0));
	CALL(mlockall(MCL_CURRENT));
	CALL(munlockall());
	CALL(syscall(SYS_mlock2, area, 4096, 1));
	CALL(syscall(SYS_process_madvise, -1, parts, 1, 4, 0));
	CALL(munmap(area, 4096));
	other = CALL(memfd_create("sealed", MFD_ALLOW_SEALING));
	CALL(ftruncate(other, 10000));
	CALL(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK));
	CALL(ftruncate(other, 10));
	CALL(syscall(SYS_io_setup, 4, &context));
	CALL(syscall(SYS_io_submit, context, 1, &control));
	CALL(syscall(SYS_io_getevents, context, 0, 1, bytes, &(struct timespec){ 0 }));
	CALL(syscall(SYS_io_destroy, context));
	CALL(pipe2(pair, O_DIRECT | O_NONBLOCK));
	CALL(vmsplice(pair[1], parts, 1, SPLICE_F_GIFT));
	CALL(write(pair[1], bytes, 60000));
	CALL(splice(pair[0], NULL, file, &(loff_t){ 0 }, 5000, SPLICE_F_MOVE));
	CALL(splice(file, &(loff_t){ 0 }, pair[1], NULL, 5000, SPLICE_F_NONBLOCK));
	CALL(ioctl(pair[0], FIONREAD, bytes));
	CALL(fcntl(pair[0], F_GETPIPE_SZ));
	watcher = CALL(fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY));
	CALL(fanotify_mark(watcher, FAN_MARK_ADD, FAN_OPEN | FAN_CLOSE, AT_FDCWD, "/tmp"));
	CALL(open("/tmp/b/file", O_RDONLY));
	CALL(read(watcher, bytes, 4096));
	CALL(fanotify_mark(watcher, FAN_MARK_FLUSH, 0, AT_FDCWD, NULL));
	master = CALL(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK));
	CALL(ioctl(master, TIOCSPTLCK, &(int){ 0 }));
	CALL(ioctl(master, TIOCGPTN, bytes));
	CALL(mount("none", "/dev/pts", "devpts", 0, NULL));
	slave = CALL(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
	CALL(write(slave, "line\n", 5));
	CALL(read(master, bytes, 100));
	CALL(write(master, "ab\x7f\x15\x03\n", 6));
	CALL(ioctl(slave, TCGETS, bytes));
	CALL(ioctl(slave, TIOCSWINSZ, bytes));
	CALL(ioctl(slave, TCFLSH, 2));
	CALL(close(master));
	CALL(write(slave, "x", 1));
	CALL(mkdir("/tmp/root", 0755));
	CALL(mount("/tmp/b", "/tmp/root", NULL, MS_BIND, NULL));
	CALL(mount(NULL, "/tmp/root", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	CALL(open("/tmp/root/file", O_RDWR));
	CALL(syscall(SYS_open_tree, AT_FDCWD, "/tmp/root", 1));
	CALL(syscall(SYS_fsopen, "tmpfs", 0));
	CALL(syscall(SYS_pivot_root, "/tmp", "/tmp/root"));
	CALL(umount2("/tmp/root", 0));
	CALL(chroot("/none"));
	CALL(fchdir(folder));
	CALL(statvfs("/proc", (void *)bytes));
#ifdef SYS_ustat
	CALL(syscall(SYS_ustat, 1, bytes));
#endif
	CALL(syscall(SYS_quotactl, 0x800007, NULL, 0, bytes));
	CALL(swapon("/tmp/b/file", 0));
	CALL(syscall(SYS_landlock_create_ruleset, NULL, 0, 1));
	file = open("/proc/self/mountinfo", O_RDONLY);
	CALL(read(file, bytes, 300));
	CALL(lseek(file, 100, SEEK_SET));
	file = open("/proc/self/smaps", O_RDONLY);
	CALL(read(file, bytes, sizeof(bytes)));
	file = open("/proc/net/tcp6", O_RDONLY);
	CALL(read(file, bytes, sizeof(bytes)));
	file = open("/proc/interrupts", O_RDONLY);
	CALL(read(file, bytes, sizeof(bytes)));
	file = open("/proc/sys/vm/swappiness", O_RDWR);
	CALL(write(file, "999", 3));
	CALL(pwrite(file, "55", 2, 0));
	file = open("/proc/self/oom_score_adj", O_RDWR);
	CALL(write(file, "-5", 2));
	file = open("/sys/class/net/lo/mtu", O_RDWR);
	CALL(read(file, bytes, 100));
	CALL(write(file, "nonsense", 8));
	file = open("/proc/self/mem", O_RDWR);
	CALL(pread(file, bytes, 100, 16));
	CALL(pread(file, bytes, 100, (off_t)bytes + 500));
	file = open("/dev/random", O_RDWR);
	CALL(read(file, bytes, 40));
	CALL(ioctl(file, 0x80045200, bytes));
}

static void make_calls(void)
{
	make_ipc_calls();
	make_network_calls();
	make_more_file_calls();
	make_task_calls();
}
