/* agent: runs commands in the guest for the program that started the virtual machine.
 *
 * It communicates over one byte stream (a virtio-serial port):
 *
 * 	host:	RUN id seconds length \n script		run a shell script, with this time limit
 * 		KILL id \n				kill it now, with all its processes
 * 	guest:	READY \n				once, at the start
 * 		OUT id length \n bytes			output of the script, both streams mixed
 * 		END id status \n			exit status; 128 + signal; 124 after a timeout */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_JOBS 64
#define MAX_SCRIPT (256 << 10)

struct job {
	unsigned id;
	pid_t pid;	/* 0 = free */
	int out;
	int status;	/* -1 = still running */
	time_t deadline;
	int expired;
};

static struct job jobs[MAX_JOBS];
static int port;
static int wake[2];

static void on_child(int signal)
{
	int saved = errno;

	(void)signal;
	if (write(wake[1], "", 1) < 0)
		errno = saved;
	errno = saved;
}

static time_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static void put(const void *bytes, size_t len)
{
	const char *at = bytes;

	while (len > 0) {
		ssize_t n = write(port, at, len);
		if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
			struct pollfd p = { .fd = port, .events = POLLOUT };
			poll(&p, 1, 100);
			continue;
		}
		if (n <= 0)
			exit(1);
		at += n;
		len -= (size_t)n;
	}
}

static void say(const char *what, unsigned id, long number)
{
	char line[64];

	put(line, (size_t)snprintf(line, sizeof(line), "%s %u %ld\n", what, id, number));
}

/* Reads exactly `len` bytes from the port. */
static void take(char *to, size_t len)
{
	while (len > 0) {
		ssize_t n = read(port, to, len);
		if (n > 0) {
			to += n;
			len -= (size_t)n;
		} else if (n == 0 || errno == EAGAIN || errno == EINTR) {
			struct pollfd p = { .fd = port, .events = POLLIN };
			poll(&p, 1, 100);
		} else {
			exit(1);
		}
	}
}

static void start(unsigned id, long seconds, char *script)
{
	struct job *job = NULL;
	int out[2];

	for (int i = 0; i < MAX_JOBS && !job; i++)
		if (!jobs[i].pid)
			job = &jobs[i];
	if (!job || pipe2(out, O_CLOEXEC)) {
		say("END", id, 126);
		return;
	}
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		int null = open("/dev/null", O_RDONLY);
		dup2(null, 0);
		signal(SIGCHLD, SIG_DFL);
		execl("/bin/sh", "sh", "-c", script, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	if (pid < 0) {
		close(out[0]);
		say("END", id, 126);
		return;
	}
	setpgid(pid, pid);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	*job = (struct job){ id, pid, out[0], -1, now() + seconds, 0 };
}

static void command(void)
{
	static char script[MAX_SCRIPT + 1];
	char line[128];
	size_t at = 0;
	unsigned id;
	long seconds;
	size_t len;

	do {
		take(line + at, 1);
	} while (line[at++] != '\n' && at < sizeof(line) - 1);
	line[at] = 0;
	if (sscanf(line, "RUN %u %ld %zu", &id, &seconds, &len) == 3 && len <= MAX_SCRIPT) {
		take(script, len);
		script[len] = 0;
		start(id, seconds, script);
	} else if (sscanf(line, "KILL %u", &id) == 1) {
		for (int i = 0; i < MAX_JOBS; i++)
			if (jobs[i].pid && jobs[i].id == id)
				kill(-jobs[i].pid, SIGKILL);
	}
}

/* Forwards the output of a job. Returns 0 if no more output is available now. */
static int drain(struct job *job)
{
	static char bytes[32 << 10];
	ssize_t n = read(job->out, bytes, sizeof(bytes));

	if (n <= 0)
		return 0;
	say("OUT", job->id, n);
	put(bytes, (size_t)n);
	return 1;
}

static void reap(void)
{
	char drop[64];
	pid_t pid;
	int status;

	while (read(wake[0], drop, sizeof(drop)) > 0)
		;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < MAX_JOBS; i++)
			if (jobs[i].pid == pid)
				jobs[i].status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	for (int i = 0; i < MAX_JOBS; i++) {
		struct job *job = &jobs[i];
		if (!job->pid)
			continue;
		if (job->status < 0 && now() >= job->deadline) {
			job->expired = 1;
			kill(-job->pid, SIGKILL);
		}
		if (job->status >= 0) {
			while (drain(job))
				;
			kill(-job->pid, SIGKILL);
			close(job->out);
			say("END", job->id, job->expired ? 124 : job->status);
			job->pid = 0;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 2 || (port = open(argv[1], O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0) {
		perror("agent");
		return 1;
	}
	if (pipe2(wake, O_CLOEXEC | O_NONBLOCK))
		return 1;
	signal(SIGCHLD, on_child);
	signal(SIGPIPE, SIG_IGN);
	put("READY 0 0\n", 10);
	for (;;) {
		struct pollfd fds[MAX_JOBS + 2] = { { port, POLLIN, 0 }, { wake[0], POLLIN, 0 } };
		struct job *who[MAX_JOBS];
		int count = 0;

		for (int i = 0; i < MAX_JOBS; i++)
			if (jobs[i].pid) {
				who[count] = &jobs[i];
				fds[2 + count++] = (struct pollfd){ jobs[i].out, POLLIN, 0 };
			}
		poll(fds, (nfds_t)count + 2, 500);
		for (int i = 0; i < count; i++)
			if (fds[2 + i].revents & POLLIN)
				drain(who[i]);
		reap();
		if (fds[0].revents & POLLIN)
			command();
		else if (fds[0].revents & (POLLHUP | POLLERR))
			usleep(20000);
	}
}
