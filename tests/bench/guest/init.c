// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Init of a guest that records traces: each workload in a thread with a KCOV buffer of its own, which then waits, still
 * enabled, so that the machine's dump has them all. A thread's name is the trace's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define KCOV_INIT_TRACE _IOR('c', 1, unsigned long)
#define KCOV_ENABLE _IO('c', 100)

#define SMALL (1UL << 16)
#define LARGE (1UL << 20)

static sem_t finished;

/* What this thread records into; NULL while nobody looks. */
static __thread _Atomic(uint64_t) *area;
static __thread unsigned long area_words;

static int is_full(void)
{
	return area && area[0] >= area_words - 1;
}

static void tcp_session(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(address);
	int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), peer;
	char buffer[256];

	bind(server, (struct sockaddr *)&address, sizeof(address));
	listen(server, 1);
	getsockname(server, (struct sockaddr *)&address, &size);
	connect(client, (struct sockaddr *)&address, sizeof(address));
	peer = accept(server, NULL, NULL);
	memset(buffer, 'x', sizeof(buffer));
	if (write(client, buffer, sizeof(buffer)) > 0 && read(peer, buffer, sizeof(buffer)) > 0)
		shutdown(peer, SHUT_RDWR);
	close(peer);
	close(client);
	close(server);
}

static void tcp(void)
{
	while (!is_full())
		tcp_session();
}

static void file_round(int number)
{
	char path[64], buffer[4096];
	int fd;

	snprintf(path, sizeof(path), "/tmp/file%d-%ld", number, (long)gettid());
	fd = open(path, O_RDWR | O_CREAT, 0600);
	memset(buffer, number, sizeof(buffer));
	if (write(fd, buffer, 100 + number) > 0 && pread(fd, buffer, 100, 0) > 0)
		fsync(fd);
	close(fd);
	unlink(path);
}

static void vfs(void)
{
	int i;

	for (i = 0; !is_full(); i++)
		file_round(i % 100);
}

static void walk(const char *path, int depth, int reads)
{
	DIR *folder = opendir(path);
	struct dirent *entry;
	char name[4096], buffer[512];

	if (!folder)
		return;
	while (!is_full() && (entry = readdir(folder))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		if (entry->d_type == DT_DIR && depth) {
			walk(name, depth - 1, reads);
		} else if (entry->d_type == DT_REG && reads) {
			int fd = open(name, O_RDONLY | O_NONBLOCK);

			if (fd >= 0 && read(fd, buffer, sizeof(buffer)) < 0)
				lseek(fd, 0, SEEK_SET);
			close(fd);
		}
	}
	closedir(folder);
}

static void proc(void)
{
	while (!is_full())
		walk("/proc/sys", 8, 1);
}

static void small_things(void)
{
	int pipes[2], pair[2], fd, i;
	struct epoll_event event = { .events = EPOLLIN };
	struct itimerspec timer = { .it_value.tv_nsec = 1000 };
	struct statfs statistics;
	struct stat status;
	uint64_t value = 1;
	char buffer[64];
	void *memory;
	pid_t child;

	if (!pipe(pipes)) {
		int epoll = epoll_create1(0);

		epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event);
		if (write(pipes[1], "x", 1) == 1)
			epoll_wait(epoll, &event, 1, 10);
		close(epoll);
		close(pipes[0]);
		close(pipes[1]);
	}
	fd = eventfd(0, 0);
	if (write(fd, &value, sizeof(value)) > 0 && read(fd, &value, sizeof(value)) > 0)
		close(fd);
	fd = timerfd_create(CLOCK_MONOTONIC, 0);
	timerfd_settime(fd, 0, &timer, NULL);
	if (read(fd, &value, sizeof(value)) > 0)
		close(fd);
	fd = inotify_init1(IN_NONBLOCK);
	inotify_add_watch(fd, "/tmp", IN_CREATE);
	file_round(1);
	if (read(fd, buffer, sizeof(buffer)) < 0)
		value = 0;
	close(fd);
	for (i = 0; i < 3; i++) {
		static const int types[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };

		if (socketpair(AF_UNIX, types[i], 0, pair))
			continue;
		if (send(pair[0], "hello", 5, 0) > 0 && recv(pair[1], buffer, sizeof(buffer), MSG_DONTWAIT) > 0)
			shutdown(pair[0], SHUT_RDWR);
		close(pair[0]);
		close(pair[1]);
	}
	for (i = 0; i < 2; i++) {
		struct sockaddr_in6 address = { .sin6_family = AF_INET6,
						.sin6_port = htons(9),
						.sin6_addr = IN6ADDR_LOOPBACK_INIT };

		fd = socket(AF_INET6, SOCK_DGRAM, 0);
		sendto(fd, "x", 1, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof(address));
		close(fd);
		fd = socket(AF_NETLINK, SOCK_RAW, 0);
		close(fd);
	}
	memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 1, 1 << 18);
	mprotect(memory, 1 << 16, PROT_READ);
	memory = mremap(memory, 1 << 20, 1 << 21, MREMAP_MAYMOVE);
	madvise(memory, 1 << 18, MADV_DONTNEED);
	munmap(memory, 1 << 21);
	fd = memfd_create("m", 0);
	if (!ftruncate(fd, 1 << 16)) {
		memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		memset(memory, 1, 1 << 16);
		munmap(memory, 1 << 16);
	}
	close(fd);
	mkdir("/tmp/d", 0700);
	if (!symlink("/tmp/d", "/tmp/l") && !rename("/tmp/d", "/tmp/e"))
		stat("/tmp/l", &status);
	unlink("/tmp/l");
	rmdir("/tmp/e");
	statfs("/tmp", &statistics);
	child = fork();
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
}

static void mixed(void)
{
	int i;

	small_things();
	walk("/proc/self", 2, 1);
	walk("/proc", 0, 1);
	walk("/sys/kernel", 1, 1);
	walk("/sys/bus", 2, 1);
	for (i = 0; i < 5; i++)
		tcp_session();
	while (!is_full()) {
		small_things();
		tcp_session();
		file_round(7);
	}
}

static struct workload {
	const char *name;
	unsigned long words;
	void (*run)(void);
} workloads[] = {
	{ "tcp-a", SMALL, tcp }, { "tcp-b", SMALL, tcp },     { "vfs-a", LARGE, vfs },	   { "vfs-b", LARGE, vfs },
	{ "proc", LARGE, proc }, { "mixed-a", LARGE, mixed }, { "mixed-b", LARGE, mixed },
};

static void *record(void *argument)
{
	struct workload *workload = argument;
	int fd = open("/sys/kernel/debug/kcov", O_RDWR);
	void *mapped;

	prctl(PR_SET_NAME, workload->name);
	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, workload->words))
		abort();
	mapped = mmap(NULL, workload->words * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		abort();
	/* Pages that are touched for the first time are a workload of their own. */
	memset(mapped, 0, workload->words * 8);
	area_words = workload->words;
	area = mapped;
	if (ioctl(fd, KCOV_ENABLE, 0))
		abort();
	workload->run();
	sem_post(&finished);
	for (;;)
		pause();
}

int main(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	unsigned int i;
	int fd;

	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	ioctl(fd, SIOCSIFFLAGS, &request);
	close(fd);
	tcp_session();
	sem_init(&finished, 0, 0);
	for (i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, record, &workloads[i]))
			abort();
		sem_wait(&finished);
	}
	fd = open("/dev/ttyS1", O_WRONLY);
	if (fd < 0 || dprintf(fd, "TRUTH {\"done\": true}\n") < 0)
		abort();
	for (;;)
		pause();
}
