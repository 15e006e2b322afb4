// SPDX-License-Identifier: LGPL-2.1-or-later
/* System calls of many kinds. */
#include "calls.h"

#include <dirent.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>

static void make_file_calls(void)
{
	static char bytes[8192];
	struct iovec parts[2] = { { bytes, 100 }, { bytes + 200, 3000 } };
	struct stat status;
	struct statfs system;
	int file, other, folder, pair[2];

	CALL(mkdir("/tmp/a", 0755));
	CALL(mkdir("/tmp/a", 0755));
	CALL(mkdir("/tmp/none/b", 0755));
	CALL(mkdir("", 0755));
	file = CALL(open("/tmp/a/file", O_RDWR | O_CREAT | O_EXCL, 0644));
	CALL(open("/tmp/a/file", O_RDWR | O_CREAT | O_EXCL, 0644));
	CALL(open("/tmp/a/none", O_RDONLY));
	CALL(open("/tmp/a", O_WRONLY));
	CALL(open("/tmp/a/file/b", O_RDONLY));
	CALL(open((char *)1, O_RDONLY));
	CALL(write(file, bytes, 10));
	CALL(write(file, bytes, sizeof(bytes)));
	CALL(write(file, (void *)1, 10));
	CALL(write(-1, bytes, 10));
	CALL(pwrite(file, bytes, 100, 100000));
	CALL(lseek(file, 0, SEEK_SET));
	CALL(lseek(file, -1, SEEK_SET));
	CALL(lseek(file, 0, SEEK_DATA));
	CALL(lseek(file, 0, 77));
	CALL(read(file, bytes, 10));
	CALL(read(file, bytes, sizeof(bytes)));
	CALL(read(file, (void *)1, 10));
	CALL(pread(file, bytes, 100, 1 << 20));
	CALL(readv(file, parts, 2));
	CALL(writev(file, parts, 2));
	CALL(writev(file, parts, -1));
	CALL(fstat(file, &status));
	CALL(stat("/tmp/a/file", &status));
	CALL(stat("/tmp/a/none", &status));
	CALL(lstat("/proc/self", &status));
	CALL(statfs("/tmp", &system));
	CALL(ftruncate(file, 5000));
	CALL(truncate("/tmp/a/file", -1));
	CALL(fallocate(file, 0, 0, 20000));
	CALL(fallocate(file, 3, 0, 4096));
	CALL(fsync(file));
	CALL(fchmod(file, 0600));
	CALL(chmod("/tmp/a/none", 0600));
	CALL(fchown(file, 1, 1));
	CALL(link("/tmp/a/file", "/tmp/a/link"));
	CALL(link("/tmp/a/file", "/tmp/a/link"));
	CALL(symlink("/tmp/a/file", "/tmp/a/soft"));
	CALL(readlink("/tmp/a/soft", bytes, sizeof(bytes)));
	CALL(readlink("/tmp/a/file", bytes, sizeof(bytes)));
	CALL(symlink("/tmp/a/loop", "/tmp/a/loop"));
	CALL(open("/tmp/a/loop", O_RDONLY));
	CALL(rename("/tmp/a/link", "/tmp/a/other"));
	CALL(rename("/tmp/a/none", "/tmp/a/other"));
	CALL(rename("/tmp/a", "/tmp/a/b"));
	CALL(access("/tmp/a/file", R_OK));
	CALL(access("/tmp/a/file", 99));
	CALL(utimensat(AT_FDCWD, "/tmp/a/file", NULL, 0));
	CALL(setxattr("/tmp/a/file", "user.x", "y", 1, 0));
	CALL(getxattr("/tmp/a/file", "user.x", bytes, sizeof(bytes)));
	CALL(listxattr("/tmp/a/file", bytes, sizeof(bytes)));
	folder = CALL(open("/tmp/a", O_RDONLY | O_DIRECTORY));
	CALL(syscall(SYS_getdents64, folder, bytes, sizeof(bytes)));
	CALL(syscall(SYS_getdents64, folder, bytes, sizeof(bytes)));
	CALL(syscall(SYS_getdents64, file, bytes, sizeof(bytes)));
	CALL(fcntl(file, F_GETFL));
	CALL(fcntl(file, F_SETFL, O_APPEND));
	CALL(fcntl(file, F_DUPFD, 100));
	CALL(fcntl(file, F_SETLK, &(struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 }));
	CALL(fcntl(file, 9999));
	CALL(dup(file));
	CALL(dup2(file, 50));
	CALL(dup3(file, file, 0));
	CALL(ioctl(file, FIONREAD, bytes));
	CALL(ioctl(file, 0x12345678, bytes));
	CALL(flock(file, 2 | 4));
	other = CALL(open("/tmp/copy", O_RDWR | O_CREAT, 0644));
	CALL(sendfile(other, file, &(off_t){ 0 }, 4000));
	CALL(sendfile(other, file, NULL, 4000));
	CALL(copy_file_range(file, &(off64_t){ 0 }, other, &(off64_t){ 0 }, 3000, 0));
	CALL(syncfs(other));
	CALL(pipe(pair));
	CALL(pipe2(pair, O_NONBLOCK));
	CALL(read(pair[0], bytes, 10));
	CALL(write(pair[1], bytes, 3000));
	CALL(read(pair[0], bytes, 10));
	CALL(splice(pair[0], NULL, other, NULL, 2000, 0));
	CALL(tee(pair[0], pair[1], 100, SPLICE_F_NONBLOCK));
	CALL(fcntl(pair[1], F_SETPIPE_SZ, 1 << 16));
	CALL(close(pair[0]));
	signal(SIGPIPE, SIG_IGN);
	CALL(write(pair[1], bytes, 10));
	CALL(close(pair[1]));
	CALL(close(9999));
	CALL(unlink("/tmp/a/other"));
	CALL(unlink("/tmp/a/none"));
	CALL(unlink("/tmp/a"));
	CALL(rmdir("/tmp/a"));
	CALL(rmdir("/tmp/none"));
	CALL(chdir("/tmp"));
	CALL(getcwd(bytes, sizeof(bytes)));
	CALL(getcwd(bytes, 1));
	CALL(umask(022));
	CALL(close(file));
	CALL(mknod("/tmp/fifo", S_IFIFO | 0644, 0));
	CALL(mount("none", "/mnt", "tmpfs", 0, NULL));
	CALL(mount("none", "/mnt", "nothing", 0, NULL));
	CALL(umount2("/mnt", MNT_DETACH));
}

static void make_memory_calls(void)
{
	char *area = (char *)CALL(mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	unsigned char pages[16];

	CALL(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CALL(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 9999, 0));
	CALL(mmap((void *)4096, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	CALL(area[0] = 1);
	CALL(area[8192] = 1);
	CALL(mprotect(area + 4096, 4096, PROT_READ));
	CALL(mprotect(area + 1, 4096, PROT_READ));
	CALL(mprotect((void *)(1ULL << 46), 4096, PROT_READ));
	CALL(madvise(area, 8192, MADV_DONTNEED));
	CALL(madvise(area, 8192, MADV_WILLNEED));
	CALL(madvise(area, 8192, 999));
	CALL(mincore(area, 1 << 16, pages));
	CALL(mlock(area, 4096));
	CALL(munlock(area, 4096));
	CALL(msync(area, 4096, MS_SYNC));
	area = (char *)CALL(mremap(area, 1 << 16, 1 << 17, MREMAP_MAYMOVE));
	CALL(mremap(area, 4096, 1 << 17, 0x77));
	CALL(munmap(area, 4096));
	CALL(munmap((void *)1, 4096));
	CALL(munmap(area + 4096, 1 << 16));
	CALL(sbrk(1 << 16));
	CALL(memfd_create("name", 0));
	CALL(memfd_create("name", 0xffff));
	CALL(syscall(SYS_membarrier, 0, 0, 0));
}

static void make_event_calls(void)
{
	struct timespec none = { 0 };
	struct epoll_event event = { .events = EPOLLIN };
	struct itimerspec when = { .it_value.tv_sec = 100 };
	uint64_t number = 3;
	int poller = CALL(epoll_create1(0)), counter = CALL(eventfd(0, EFD_NONBLOCK)), timer, watch;
	struct pollfd polled = { .fd = counter, .events = POLLIN | POLLOUT };
	fd_set set;

	CALL(epoll_ctl(poller, EPOLL_CTL_ADD, counter, &event));
	CALL(epoll_ctl(poller, EPOLL_CTL_ADD, counter, &event));
	CALL(epoll_ctl(poller, EPOLL_CTL_ADD, poller, &event));
	CALL(epoll_wait(poller, &event, 1, 0));
	CALL(write(counter, &number, 8));
	CALL(epoll_wait(poller, &event, 1, 0));
	CALL(epoll_ctl(poller, EPOLL_CTL_MOD, counter, &event));
	CALL(read(counter, &number, 8));
	CALL(read(counter, &number, 8));
	CALL(epoll_ctl(poller, EPOLL_CTL_DEL, counter, &event));
	CALL(poll(&polled, 1, 0));
	CALL(ppoll(&polled, 1, &none, NULL));
	FD_ZERO(&set);
	FD_SET(counter, &set);
	CALL(select(counter + 1, &set, NULL, NULL, &(struct timeval){ 0 }));
	timer = CALL(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
	CALL(timerfd_settime(timer, 0, &when, NULL));
	CALL(timerfd_gettime(timer, &when));
	CALL(read(timer, &number, 8));
	CALL(timerfd_create(77, 0));
	watch = CALL(inotify_init1(IN_NONBLOCK));
	CALL(inotify_add_watch(watch, "/tmp", IN_CREATE));
	CALL(creat("/tmp/watched", 0644));
	{
		char bytes[512];

		CALL(read(watch, bytes, sizeof(bytes)));
	}
	CALL(inotify_rm_watch(watch, 1));
	CALL(close(poller));
}

static void make_socket_calls(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un path = { .sun_family = AF_UNIX, .sun_path = "/tmp/socket" };
	socklen_t size = sizeof(address);
	int pair[2], server, client, datagrams, on = 1, local;
	char bytes[2000];
	struct iovec part = { bytes, 100 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CALL(write(pair[0], bytes, 100));
	CALL(read(pair[1], bytes, 10));
	CALL(recv(pair[1], bytes, 1000, MSG_PEEK));
	CALL(sendmsg(pair[0], &message, 0));
	CALL(recvmsg(pair[1], &message, MSG_DONTWAIT));
	CALL(recv(pair[0], bytes, 10, MSG_DONTWAIT));
	CALL(shutdown(pair[0], SHUT_WR));
	CALL(close(pair[1]));
	local = CALL(socket(AF_UNIX, SOCK_DGRAM, 0));
	CALL(bind(local, (void *)&path, sizeof(path)));
	CALL(bind(local, (void *)&path, sizeof(path)));
	CALL(sendto(local, bytes, 10, 0, (void *)&path, sizeof(path)));
	CALL(recv(local, bytes, 10, MSG_DONTWAIT));
	CALL(socket(AF_INET, 77, 0));
	CALL(socket(9999, SOCK_STREAM, 0));
	server = CALL(socket(AF_INET, SOCK_STREAM, 0));
	CALL(setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	CALL(setsockopt(server, SOL_SOCKET, 9999, &on, sizeof(on)));
	CALL(setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	CALL(getsockopt(server, SOL_SOCKET, SO_TYPE, &on, &(socklen_t){ sizeof(on) }));
	CALL(bind(server, (void *)&address, sizeof(address)));
	CALL(bind(server, (void *)&address, 3));
	CALL(listen(server, 5));
	CALL(getsockname(server, (void *)&address, &size));
	CALL(accept4(server, NULL, NULL, SOCK_NONBLOCK | 0x100000));
	client = CALL(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CALL(connect(client, (void *)&address, sizeof(address)));
	CALL(connect(client, (void *)&address, sizeof(address)));
	CALL(getpeername(client, (void *)&address, &size));
	CALL(send(client, bytes, 100, 0));
	CALL(recv(client, bytes, 100, 0));
	CALL(close(client));
	datagrams = CALL(socket(AF_INET, SOCK_DGRAM, 0));
	CALL(bind(datagrams, (void *)&(struct sockaddr_in){ .sin_family = AF_INET }, sizeof(address)));
	CALL(sendto(datagrams, bytes, 100, 0, (void *)&address, sizeof(address)));
	CALL(recv(datagrams, bytes, 100, MSG_DONTWAIT));
	CALL(ioctl(datagrams, FIONREAD, &on));
	CALL(close(server));
}

static void handle(int number)
{
	(void)number;
}

static void make_process_calls(void)
{
	struct timespec now, shortly = { 0, 1000 };
	struct rlimit limit;
	struct rusage usage;
	struct utsname names;
	struct sysinfo info;
	struct sigaction action = { .sa_handler = handle };
	sigset_t set;
	cpu_set_t cpus;
	char bytes[4096];
	int file;

	CALL(getpid());
	CALL(syscall(SYS_gettid));
	CALL(getppid());
	CALL(getuid());
	CALL(setuid(0));
	CALL(setgid(0));
	CALL(getgroups(0, NULL));
	CALL(getpgid(0));
	CALL(setsid());
	CALL(uname(&names));
	CALL(sysinfo(&info));
	CALL(getrlimit(RLIMIT_NOFILE, &limit));
	CALL(setrlimit(RLIMIT_NOFILE, &limit));
	CALL(setrlimit(999, &limit));
	CALL(getrusage(RUSAGE_SELF, &usage));
	CALL(getpriority(PRIO_PROCESS, 0));
	CALL(setpriority(PRIO_PROCESS, 0, 5));
	CALL(sched_getaffinity(0, sizeof(cpus), &cpus));
	CALL(sched_setaffinity(0, sizeof(cpus), &cpus));
	CALL(syscall(SYS_sched_getscheduler, 0));
	CALL(syscall(SYS_clock_gettime, CLOCK_REALTIME, &now));
	CALL(syscall(SYS_clock_gettime, 99, &now));
	CALL(clock_getres(CLOCK_MONOTONIC, &now));
	CALL(nanosleep(&(struct timespec){ 0, -1 }, NULL));
	CALL(syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &shortly, NULL));
	CALL(prctl(PR_SET_NAME, "calls"));
	CALL(prctl(PR_GET_DUMPABLE));
	CALL(prctl(9999));
	CALL(sigaction(SIGUSR1, &action, NULL));
	CALL(sigaction(SIGKILL, &action, NULL));
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	CALL(kill(getpid(), SIGUSR1));
	CALL(kill(getpid(), SIGUSR2));
	CALL(kill(99999, SIGUSR1));
	CALL(kill(getpid(), 999));
	CALL(signalfd(-1, &set, SFD_NONBLOCK));
	CALL(sigtimedwait(&set, NULL, &(struct timespec){ 0 }));
	CALL(syscall(SYS_futex, &file, FUTEX_WAKE, 1, NULL, NULL, 0));
	CALL(syscall(SYS_futex, &file, FUTEX_WAIT, file + 1, NULL, NULL, 0));
	CALL(waitpid(-1, NULL, WNOHANG));
	CALL(syscall(9999));
	CALL(syscall(SYS_getrandom, bytes, 16, 0));
	file = CALL(open("/proc/self/status", O_RDONLY));
	CALL(read(file, bytes, sizeof(bytes)));
	CALL(close(file));
	file = CALL(open("/proc/self/maps", O_RDONLY));
	CALL(read(file, bytes, sizeof(bytes)));
	file = CALL(open("/proc/meminfo", O_RDONLY));
	CALL(read(file, bytes, sizeof(bytes)));
	file = CALL(open("/proc/sys/kernel/hostname", O_RDWR));
	CALL(write(file, "name", 4));
	CALL(open("/proc/self/fd/none", O_RDONLY));
	file = CALL(open("/sys/kernel/uevent_helper", O_RDONLY));
	file = CALL(open("/dev/null", O_RDWR));
	CALL(write(file, bytes, 100));
	CALL(read(file, bytes, 100));
	file = CALL(open("/dev/zero", O_RDWR));
	CALL(read(file, bytes, 100));
	CALL(lseek(file, 10, SEEK_CUR));
	CALL(ioctl(1, TCGETS, bytes));
	CALL(sched_yield());
}

/* Each section of a loaded module, with its address. */
static void write_sections(const char *folder)
{
	FILE *list = fopen("/out/sections", "w"), *file;
	struct dirent *entry;
	char path[400], text[64];
	DIR *sections = opendir(folder);

	while (sections && (entry = readdir(sections))) {
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		file = entry->d_name[0] == '.' || entry->d_name[0] == '_' ? fopen(path, "r") : NULL;
		if (file && fgets(text, sizeof(text), file))
			fprintf(list, "%s %s", entry->d_name, text);
		if (file)
			fclose(file);
	}
	fclose(list);
}

/* Of the lab's module: tests/lab/line_module. */
static void make_module_calls(void)
{
	static char bytes[200] = "many bytes";
	int file = open("/modules/kcovlab_lines.ko", O_RDONLY);

	if (file < 0)
		return;
	if (syscall(SYS_finit_module, file, "", 0))
		perror("kcovlab_lines");
	write_sections("/sys/module/kcovlab_lines/sections");
	file = CALL(open("/sys/kernel/debug/kcovlab_lines/run", O_RDWR));
	CALL(write(file, "a3", 2));
	CALL(write(file, "c3", 2));
	CALL(write(file, "d2", 2));
	CALL(write(file, "e7", 2));
	CALL(write(file, "e1", 2));
	CALL(write(file, "g5", 2));
	CALL(write(file, "z5", 2));
	CALL(write(file, "+one", 5));
	CALL(write(file, "+two", 5));
	CALL(write(file, "+one", 5));
	CALL(write(file, "+a name that is long", 21));
	CALL(read(file, bytes, 100));
	CALL(read(file, bytes, 100));
	CALL(write(file, "1two", 5));
	CALL(write(file, "1none", 6));
	CALL(write(file, "0text", 6));
	CALL(write(file, "25", 3));
	CALL(write(file, "21", 3));
	CALL(write(file, "0text", 6));
	CALL(write(file, "20", 3));
	CALL(write(file, "0text", 6));
	CALL(write(file, "3text", 6));
	CALL(write(file, "3longer text", 13));
	CALL(write(file, "3#", 3));
	CALL(write(file, "3a#b", 5));
	CALL(write(file, "3\0", 3));
	CALL(write(file, "r6", 2));
	CALL(write(file, "u1", 2));
	CALL(write(file, "u2", 2));
	CALL(write(file, bytes, 100));
	CALL(write(file, (void *)1, 100));
	CALL(write(file, "\1\0\0\0\2\0\0", 8));
	CALL(write(file, (void *)1, 8));
	CALL(write(file, (void *)-4096, 8));
	CALL(write(file, (void *)1, 3));
	CALL(write(file, "", 1));
}

static void make_calls(void)
{
	make_file_calls();
	make_memory_calls();
	make_event_calls();
	make_socket_calls();
	make_process_calls();
	make_module_calls();
}
