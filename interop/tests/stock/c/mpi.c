/* Ranks of an MPI job: every pair exchanges messages of several sizes, followed by collectives
 * that compute sums. With a number as argument, the exchanges continue until that rank kills
 * itself. With "leave", the ranks exit without MPI_Finalize. */
#include "check.h"
#include <mpi.h>
#include <signal.h>
#include <stdint.h>

enum { LARGEST = 1 << 20, COUNT = 20000 };

static const int sizes[] = { 1, 64, 1000, 9000, 100000, LARGEST };
static unsigned char out[LARGEST], in[LARGEST];
static int rank, ranks;

/* Returns a byte that depends on the pair, the direction, the size and the position. */
static unsigned char byte_of(int from, int to, int size, int at)
{
	return (unsigned char)(from * 31 + to * 17 + size * 7 + at + at / 251);
}

static void exchange(int with, int size)
{
	MPI_Status status;
	int at, got;

	for (at = 0; at < size; at++)
		out[at] = byte_of(rank, with, size, at);
	memset(in, 0xee, size);
	CHECK(!MPI_Sendrecv(out, size, MPI_BYTE, with, size, in, size, MPI_BYTE, with, size, MPI_COMM_WORLD, &status));
	CHECK(!MPI_Get_count(&status, MPI_BYTE, &got) && got == size && status.MPI_SOURCE == with);
	for (at = 0; at < size; at++)
		CHECK(in[at] == byte_of(with, rank, size, at));
}

/* In round r, the ranks whose numbers add up to r are partners, so each pair meets once. */
static void every_pair(void)
{
	unsigned i;
	int round;

	for (i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (round = 0; round < ranks; round++) {
			int with = (round - rank + ranks) % ranks;

			if (with != rank)
				exchange(with, sizes[i]);
		}
}

static void collectives(void)
{
	static int64_t mine[COUNT], all[COUNT], parts[COUNT];
	int64_t sum_of_ranks = (int64_t)ranks * (ranks - 1) / 2;
	int i, root, part = COUNT / ranks;

	for (i = 0; i < COUNT; i++)
		mine[i] = (int64_t)rank + i;
	CHECK(!MPI_Allreduce(mine, all, COUNT, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD));
	for (i = 0; i < COUNT; i++)
		CHECK(all[i] == sum_of_ranks + (int64_t)ranks * i);

	for (root = 0; root < ranks; root++) {
		for (i = 0; i < COUNT; i++)
			parts[i] = rank == root ? (int64_t)root * COUNT + i : -1;
		CHECK(!MPI_Bcast(parts, COUNT, MPI_INT64_T, root, MPI_COMM_WORLD));
		for (i = 0; i < COUNT; i++)
			CHECK(parts[i] == (int64_t)root * COUNT + i);
		CHECK(!MPI_Reduce(mine, all, COUNT, MPI_INT64_T, MPI_SUM, root, MPI_COMM_WORLD));
		for (i = 0; rank == root && i < COUNT; i++)
			CHECK(all[i] == sum_of_ranks + (int64_t)ranks * i);
	}

	for (i = 0; i < part * ranks; i++)
		mine[i] = (int64_t)rank * 1000000 + i;
	CHECK(!MPI_Alltoall(mine, part, MPI_INT64_T, all, part, MPI_INT64_T, MPI_COMM_WORLD));
	for (i = 0; i < part * ranks; i++)
		CHECK(all[i] == (int64_t)(i / part) * 1000000 + (int64_t)rank * part + i % part);
	CHECK(!MPI_Allgather(mine, part, MPI_INT64_T, parts, part, MPI_INT64_T, MPI_COMM_WORLD));
	for (i = 0; i < part * ranks; i++)
		CHECK(parts[i] == (int64_t)(i / part) * 1000000 + i % part);
	CHECK(!MPI_Barrier(MPI_COMM_WORLD));
}

int main(int argc, char **argv)
{
	int victim, round, leave;

	CHECK(!MPI_Init(&argc, &argv));
	CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &ranks));
	every_pair();
	collectives();
	leave = argc > 1 && !strcmp(argv[1], "leave");
	if (argc > 1 && !leave) {
		victim = atoi(argv[1]);
		if (rank == 0) {
			printf("rank %d will kill itself\n", victim);
			fflush(stdout);
		}
		for (round = 0;; round++) {
			if (rank == victim && round == 20)
				raise(SIGKILL);
			every_pair();
		}
	}
	printf("rank %d of %d is done\n", rank, ranks);
	if (leave) {
		/* The program exits without MPI_Finalize. The barrier and the pause ensure that the peers have
		 * received their messages. */
		fflush(stdout);
		CHECK(!MPI_Barrier(MPI_COMM_WORLD));
		sleep(1);
		_exit(0);
	}
	return MPI_Finalize();
}
