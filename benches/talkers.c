/* SPDX-License-Identifier: GPL-2.0-or-later */
/* talkers COUNT: processes that have each sent a datagram to themselves and live until the input ends; prints a line once all have. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int talk(void)
{
	struct sockaddr_in self = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(self);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	char byte = 0;

	if (fd < 0 || bind(fd, (struct sockaddr *)&self, size) || getsockname(fd, (struct sockaddr *)&self, &size))
		return 1;
	return sendto(fd, &byte, 1, 0, (struct sockaddr *)&self, size) != 1 || recv(fd, &byte, 1, 0) != 1;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 2000, done[2];
	char byte;

	if (pipe(done))
		return 1;
	for (int i = 0; i < count; i++) {
		int pid = fork();

		if (pid < 0)
			return 1;
		if (pid)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		byte = talk();
		if (write(done[1], &byte, 1) != 1 || byte)
			_exit(1);
		for (;;)
			pause();
	}
	for (int i = 0; i < count; i++)
		if (read(done[0], &byte, 1) != 1 || byte)
			return 1;
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
