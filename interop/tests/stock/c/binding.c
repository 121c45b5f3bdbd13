/* Tests the errors of binds to a port that another process uses, and the limits of a device. The
 * argument is the kind of device: "infiniband", "iwarp", or "no-datagrams" for an iWARP device
 * without UD queue pairs. */
#include "cm.h"
#include <sys/wait.h>

union address {
	struct sockaddr any;
	struct sockaddr_in four;
	struct sockaddr_in6 six;
};

static struct rdma_event_channel *channel;

static union address address(const char *text, uint16_t port)
{
	union address address = { .four = { .sin_family = AF_INET, .sin_port = port } };

	if (inet_pton(AF_INET, text, &address.four.sin_addr) == 1)
		return address;
	memset(&address, 0, sizeof address);
	address.six.sin6_family = AF_INET6;
	address.six.sin6_port = port;
	CHECK(inet_pton(AF_INET6, text, &address.six.sin6_addr) == 1);
	return address;
}

/* Process that listens at an address until it is told to exit. */
struct holder {
	pid_t pid;
	int control;
	uint16_t port;
};

static void hold(const char *text, enum rdma_port_space space, int in, int out)
{
	union address at = address(text, 0);
	struct rdma_cm_id *id;
	uint16_t port;
	char byte;

	CHECK((channel = rdma_create_event_channel()) && !rdma_create_id(channel, &id, NULL, space));
	CHECK(!rdma_bind_addr(id, &at.any) && !rdma_listen(id, 4));
	port = rdma_get_src_port(id);
	CHECK(write(out, &port, sizeof port) == sizeof port);
	CHECK(read(in, &byte, 1) == 0);
	_exit(EXIT_SUCCESS);
}

static struct holder start(const char *text, enum rdma_port_space space)
{
	int to[2], from[2];
	struct holder holder;

	CHECK(!pipe(to) && !pipe(from) && (holder.pid = fork()) >= 0);
	if (!holder.pid) {
		close(to[1]);
		hold(text, space, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	CHECK(read(from[0], &holder.port, sizeof holder.port) == sizeof holder.port);
	close(from[0]);
	holder.control = to[1];
	return holder;
}

static void end(struct holder holder)
{
	int status;

	close(holder.control);
	CHECK(waitpid(holder.pid, &status, 0) == holder.pid && status == 0);
}

static int error_of_bind(const char *text, enum rdma_port_space space, uint16_t port)
{
	union address at = address(text, port);
	struct rdma_cm_id *id;
	int error;

	CHECK(!rdma_create_id(channel, &id, NULL, space));
	error = rdma_bind_addr(id, &at.any) ? errno : 0;
	CHECK(!rdma_destroy_id(id));
	return error;
}

static void collisions(enum rdma_port_space space, int with_six)
{
	static const struct {
		const char *held, *bound;
		int six, error;
	} cases[] = {
		{ "127.0.0.1", "127.0.0.1", 0, EADDRINUSE },
		{ "127.0.0.1", "127.0.0.2", 0, 0 },
		{ "127.0.0.1", "0.0.0.0", 0, EADDRNOTAVAIL },
		{ "0.0.0.0", "127.0.0.1", 0, EADDRNOTAVAIL },
		{ "0.0.0.0", "0.0.0.0", 0, EADDRNOTAVAIL },
		{ "::1", "::1", 1, EADDRINUSE },
		{ "::1", "::", 1, EADDRNOTAVAIL },
		{ "::", "::1", 1, EADDRNOTAVAIL },
		{ "::", "::", 1, EADDRNOTAVAIL },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct holder holder;
		int error;

		/* A UDP listener at a wildcard address is bound to each existing address, so the errors
		 * differ. */
		if ((cases[i].six && !with_six) || (space == RDMA_PS_UDP && !strcmp(cases[i].held, "0.0.0.0")) ||
		    (space == RDMA_PS_UDP && !strcmp(cases[i].held, "::")))
			continue;
		holder = start(cases[i].held, space);
		error = error_of_bind(cases[i].bound, space, holder.port);
		if (error != cases[i].error) {
			fprintf(stderr, "%s held, %s bound: %s\n", cases[i].held, cases[i].bound, strerror(error));
			_exit(EXIT_FAILURE);
		}
		end(holder);
	}
}

static int has_six(void)
{
	union address at = address("::1", 0);
	int fd = socket(AF_INET6, SOCK_STREAM, 0), has = fd >= 0 && !bind(fd, &at.any, sizeof at.six);

	if (fd >= 0)
		close(fd);
	return has;
}

/* The port space of an id determines the type of its queue pair. */
static void other_types_refused(enum rdma_port_space space, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = { .qp_type = type, .cap = { 1, 1, 1, 1, 0 } };
	union address at = address("127.0.0.1", 0);
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, space) && !rdma_bind_addr(id, &at.any));
	CHECK(rdma_create_qp(id, NULL, &attr) == -1 && errno == EINVAL && !id->qp);
	CHECK(!rdma_destroy_id(id));
}

static void limits(uint32_t max_message)
{
	union address at = address("127.0.0.1", 0);
	struct ibv_port_attr attr;
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, &at.any));
	CHECK(!ibv_query_port(id->verbs, 1, &attr) && attr.max_msg_sz == max_message);
	/* There is one vector for each shard, and one that leaves the choice to the library. */
	CHECK(id->verbs->num_comp_vectors >= 2);
	CHECK(!rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	const int six = has_six();
	int datagrams;

	CHECK(argc == 2);
	datagrams = strcmp(argv[1], "no-datagrams") != 0;
	/* The children are forked before the first use of the library and after it. */
	for (int i = 0; i < 2; i++) {
		CHECK((channel = rdma_create_event_channel()));
		collisions(RDMA_PS_TCP, six);
		if (datagrams)
			collisions(RDMA_PS_UDP, six);
		other_types_refused(RDMA_PS_TCP, IBV_QPT_UD);
		if (datagrams)
			other_types_refused(RDMA_PS_UDP, IBV_QPT_RC);
		limits(strcmp(argv[1], "infiniband") ? UINT32_MAX : 1u << 31);
		rdma_destroy_event_channel(channel);
	}
	printf("errors as expected\n");
	return EXIT_SUCCESS;
}
