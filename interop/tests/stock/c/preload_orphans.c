/* Connections that are closed before the peer accepts them must not remain forever. The program
 * knows only TCP and also passes on the kernel's TCP. */
#include "tcp.h"

#include <dirent.h>
#include <netinet/tcp.h>

static int descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		count++;
	CHECK(closedir(folder) == 0);
	return count;
}

int main(void)
{
	enum { COUNT = 14 };
	union address at;
	socklen_t len, size = sizeof(int);
	int listener = listening(&at, &len), second = 1, waited = 0, before, value;
	int first = socket(family, SOCK_STREAM, 0), accepted;
	CHECK(connect(first, &at.any, len) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
	crosses(first, accepted);
	before = descriptors();
	for (int i = 0; i < COUNT; i++) {
		int fd = socket(family, SOCK_STREAM, 0);
		/* The option is set before or after the connect; some connections have sent bytes. */
		if (i % 2)
			CHECK(setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &second, size) == 0);
		CHECK(connect(fd, &at.any, len) == 0);
		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &second, size) == 0);
		CHECK(getsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &value, &size) == 0 && value == 1);
		CHECK(i % 3 || send(fd, "bytes", 5, MSG_DONTWAIT) == 5);
		CHECK(close(fd) == 0);
	}
	/* The library may have opened a few descriptors of its own. */
	while (descriptors() >= before + COUNT / 2) {
		CHECK(waited++ < 20000);
		usleep(1000);
	}
	CHECK(close(first) == 0 && close(accepted) == 0 && close(listener) == 0);
	puts("nothing is left");
	return 0;
}
