/* Exercise 1: the client sends "ping" in a message, and the server answers "pong". */
#include "learn.h"

static void prepare(struct end *end)
{
	/* GAP 1: post a receive (ibv_post_recv) of 64 bytes for part(end, 0, 64). A Send of the peer needs it. */
	(void)end;
}

static void send_text(struct end *end, const char *text)
{
	struct ibv_sge sge = part(end, 64, strlen(text) + 1);

	strcpy(end->memory + 64, text);
	/* GAP 2: post a Send of `sge` (ibv_post_send, IBV_WR_SEND, IBV_SEND_SIGNALED), and wait for it with completed(). */
	(void)sge;
}

static void client(struct end *end)
{
	send_text(end, "ping");
	/* GAP 3: wait until the answer has completed your receive. */
	printf("client got %s\n", end->memory);
}

static void server(struct end *end)
{
	/* GAP 4: wait for the client's message, then answer "pong". */
	(void)end;
}
