/* A second process that ends with this one, and the port on which it listens. */
#ifndef UIW_BENCH_PEERS_H
#define UIW_BENCH_PEERS_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Does `what` in a process of its own, which ends with this one at the latest. */
static inline void start_process(void (*what)(int fd), int fd)
{
	switch (fork()) {
	case -1:
		perror("fork");
		exit(EXIT_FAILURE);
	case 0:
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		what(fd);
		exit(EXIT_FAILURE);
	}
}

/* As `start_process`; `server` writes the port on which it listens to the descriptor. */
static inline uint16_t start_server(void (*server)(int fd))
{
	uint16_t port;
	int ends[2];

	if (pipe(ends)) {
		perror("pipe");
		exit(EXIT_FAILURE);
	}
	start_process(server, ends[1]);
	close(ends[1]);
	if (read(ends[0], &port, sizeof port) != sizeof port) {
		fprintf(stderr, "the server's process ended\n");
		exit(EXIT_FAILURE);
	}
	close(ends[0]);
	return port;
}

/* The server's answer to `start_server`. */
static inline void tell_port(int fd, uint16_t port)
{
	if (write(fd, &port, sizeof port) != sizeof port) {
		perror("writing the port");
		exit(EXIT_FAILURE);
	}
	close(fd);
}

#endif
