/*
 * A service that is slow, for docs/waits.md: service FILE [CLIENTS]. Clients send a byte over a socket and wait for the answer. A worker
 * for each takes the lock of the index, reads a block of FILE past the page cache at a place of its own, and gives the lock back.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK 4096

static pthread_mutex_t index_lock = PTHREAD_MUTEX_INITIALIZER;
static long blocks;
static int file;

struct worker {
	int socket;
	unsigned seed;
	void *block;
};

__attribute__((noinline)) static void look_up(struct worker *worker)
{
	off_t at = (off_t)(rand_r(&worker->seed) % blocks) * BLOCK;

	pthread_mutex_lock(&index_lock);
	if (pread(file, worker->block, BLOCK, at) != BLOCK)
		perror("pread");
	pthread_mutex_unlock(&index_lock);
}

static void *serve(void *of)
{
	struct worker *worker = of;
	char byte;

	while (read(worker->socket, &byte, 1) == 1) {
		look_up(worker);
		if (write(worker->socket, &byte, 1) != 1)
			break;
	}
	return NULL;
}

static void ask(int socket)
{
	char byte = 0;

	prctl(PR_SET_NAME, "client");
	while (write(socket, &byte, 1) == 1 && read(socket, &byte, 1) == 1)
		;
}

int main(int argc, char **argv)
{
	int clients = argc > 2 ? atoi(argv[2]) : 4;

	file = argc > 1 ? open(argv[1], O_RDONLY | O_DIRECT) : -1;
	if (file < 0 || clients < 1) {
		fprintf(stderr, "service FILE [CLIENTS]\n");
		return 2;
	}
	blocks = lseek(file, 0, SEEK_END) / BLOCK;
	for (int client = 0; client < clients; client++) {
		struct worker *worker = calloc(1, sizeof(*worker));
		int ends[2];
		pthread_t thread;

		if (!worker || posix_memalign(&worker->block, BLOCK, BLOCK) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
			return 1;
		if (fork() == 0) {
			close(ends[0]);
			prctl(PR_SET_PDEATHSIG, 9);
			ask(ends[1]);
			return 0;
		}
		close(ends[1]);
		worker->socket = ends[0];
		worker->seed = client;
		pthread_create(&thread, NULL, serve, worker);
	}
	pause();
}
