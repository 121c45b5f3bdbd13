/* Checks used by all programs of these tests. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends the process without running exit handlers, because another thread may hold a lock that
 * they need. */
#define CHECK(condition) do { \
	if (!(condition)) { \
		fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __func__, __LINE__, #condition, errno, strerror(errno)); \
		_exit(EXIT_FAILURE); \
	} \
} while (0)

#endif
