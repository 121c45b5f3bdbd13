/* A program that knows only TCP calls exec with a used connection, and the new program reads
 * from it. */
#include "tcp.h"

int main(int argc, char **argv)
{
	union address at;
	socklen_t len;
	char number[16], byte;
	int listener, first, accepted;

	if (argc > 1) {
		printf("descriptor %s reads %zd\n", argv[1], read(atoi(argv[1]), &byte, 1));
		return 0;
	}
	listener = listening(&at, &len);
	first = socket(family, SOCK_STREAM, 0);
	CHECK(connect(first, &at.any, len) == 0 && (accepted = accept(listener, NULL, NULL)) >= 0);
	crosses(first, accepted);
	CHECK(close(accepted) == 0);
	snprintf(number, sizeof number, "%d", first);
	execl("/proc/self/exe", argv[0], number, (char *)NULL);
	CHECK(!"exec");
}
