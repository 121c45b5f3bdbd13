/* What a program under librspreload.so must not send or receive in the clear. It knows nothing of rsockets; "raw" calls go past the library,
   and are those of a peer without one. */
#define _GNU_SOURCE
#include "tcp.h"

#include <fcntl.h>
#include <sys/syscall.h>

static void descriptors_are(int lowest)
{
	int fd = open("/dev/null", O_RDONLY);
	CHECK(fd == lowest && close(fd) == 0);
}

/* The settings are wrong: there are no TCP sockets, and every other kind. */
static void no_socket(void)
{
	int lowest = open("/dev/null", O_RDONLY), fd;
	CHECK(close(lowest) == 0);
	FAILS(socket(AF_INET, SOCK_STREAM, 0), EINVAL);
	FAILS(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP), EINVAL);
	descriptors_are(lowest);
	CHECK((fd = socket(AF_INET, SOCK_DGRAM, 0)) == lowest && close(fd) == 0);
	CHECK((fd = socket(AF_UNIX, SOCK_STREAM, 0)) == lowest && close(fd) == 0);
}

/* A message that connects would connect by TCP. */
static void fast_open(void)
{
	union address at;
	socklen_t len;
	int listener = listening(&at, &len), fd = socket(AF_INET, SOCK_STREAM, 0), accepted;
	struct iovec part = {"secret", 6};
	struct msghdr message = {.msg_name = &at, .msg_namelen = len, .msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr messages = {.msg_hdr = message};
	FAILS(sendto(fd, "secret", 6, MSG_FASTOPEN, &at.any, len), EOPNOTSUPP);
	FAILS(sendmsg(fd, &message, MSG_FASTOPEN), EOPNOTSUPP);
	FAILS(sendmmsg(fd, &messages, 1, MSG_FASTOPEN), EOPNOTSUPP);
	CHECK(connect(fd, &at.any, len) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
	crosses(fd, accepted);
	CHECK(close(fd) == 0 && close(accepted) == 0 && close(listener) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (strcmp(argv[1], "no-socket") == 0)
		no_socket();
	else if (strcmp(argv[1], "fast-open") == 0)
		fast_open();
	else
		return 2;
	puts("nothing is in the clear");
	return 0;
}
