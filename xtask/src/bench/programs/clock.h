/* Time, and percentiles of what it took. */
#ifndef UIW_BENCH_CLOCK_H
#define UIW_BENCH_CLOCK_H

#include <stdlib.h>
#include <time.h>

/* Seconds of the monotonic clock. */
static inline double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static inline void sleep_for(double seconds)
{
	struct timespec time = { .tv_sec = (time_t)seconds };

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	nanosleep(&time, NULL);
}

#define MOST_SAMPLES (1 << 20)

struct samples {
	size_t count;
	double seconds[MOST_SAMPLES];
};

/* Beyond MOST_SAMPLES they are left out. */
static inline void add_sample(struct samples *samples, double seconds)
{
	if (samples->count < MOST_SAMPLES)
		samples->seconds[samples->count++] = seconds;
}

static inline int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* To be called before `percentile`. */
static inline void sort_samples(struct samples *samples)
{
	qsort(samples->seconds, samples->count, sizeof *samples->seconds, by_value);
}

/* Microseconds that this part (0 to 1) of the samples took at the most. Zero without samples. */
static inline double percentile(const struct samples *samples, double part)
{
	return samples->count ? samples->seconds[(size_t)((double)(samples->count - 1) * part)] * 1e6 : 0;
}

#endif
