// The rows of a BPF map, for benches/programs: `rows ID fill ROWS GROUPS` writes them; `rows ID walk|batch ROUNDS` reads all of them and
// prints rows, system calls and nanoseconds of the fastest round. A key is a text of 8 bytes, one of GROUPS, and a number; a value has 8.
#include <errno.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BATCH 4096

struct key {
	char group[8];
	unsigned int number;
};

static long calls;

static long bpf(int command, union bpf_attr *attributes)
{
	calls++;
	return syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

static void fill(int map, int rows, int groups)
{
	for (int i = 0; i < rows; i++) {
		struct key key = { .number = i };
		unsigned long long value = i;
		union bpf_attr attributes = { .map_fd = map, .key = (long)&key, .value = (long)&value };

		snprintf(key.group, sizeof(key.group), "g%d", i % groups);
		if (bpf(BPF_MAP_UPDATE_ELEM, &attributes)) {
			perror("BPF_MAP_UPDATE_ELEM");
			exit(1);
		}
	}
}

// Two calls for each row, as ebpf_exporter reads.
static long walk(int map)
{
	struct key key, next;
	unsigned long long value;
	union bpf_attr step = { .map_fd = map, .key = 0, .next_key = (long)&next };
	long rows = 0;

	while (!bpf(BPF_MAP_GET_NEXT_KEY, &step)) {
		union bpf_attr look = { .map_fd = map, .key = (long)&next, .value = (long)&value };

		rows += !bpf(BPF_MAP_LOOKUP_ELEM, &look);
		key = next;
		step.key = (long)&key;
	}
	return rows;
}

static long batch(int map)
{
	static struct key keys[BATCH];
	static unsigned long long values[BATCH];
	unsigned int at, next;
	long rows = 0, failed = 0;

	for (int is_first = 1; !failed; is_first = 0, at = next) {
		union bpf_attr attributes = { .batch = {
			.in_batch = is_first ? 0 : (long)&at, .out_batch = (long)&next, .keys = (long)keys, .values = (long)values,
			.count = BATCH, .map_fd = map } };

		failed = bpf(BPF_MAP_LOOKUP_BATCH, &attributes);
		if (failed && errno != ENOENT) {
			perror("BPF_MAP_LOOKUP_BATCH");
			exit(1);
		}
		rows += attributes.batch.count;
	}
	return rows;
}

int main(int arguments, char **argument)
{
	union bpf_attr by_id = { .map_id = arguments > 3 ? atoi(argument[1]) : 0 };
	int map = bpf(BPF_MAP_GET_FD_BY_ID, &by_id);
	long best = -1, rows = 0;

	if (map < 0) {
		perror("rows: a map of this number");
		return 1;
	}
	if (!strcmp(argument[2], "fill"))
		return fill(map, atoi(argument[3]), atoi(argument[4])), 0;
	for (int round = atoi(argument[3]); round; round--) {
		struct timespec begin, end;

		calls = 0;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		rows = !strcmp(argument[2], "walk") ? walk(map) : batch(map);
		clock_gettime(CLOCK_MONOTONIC, &end);
		long spent = (end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec;
		if (best < 0 || spent < best)
			best = spent;
	}
	printf("%ld %ld %ld\n", rows, calls, best);
}
