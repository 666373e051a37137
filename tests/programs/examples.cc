// The work that the pairs of examples/ count: `examples-work KIND=NUMBER[:FILE]...` does a number of things of each kind, each under a
// command name of its own, work-KIND, so that what the program does besides is not among them. Prints a line `KIND WAITS` for each: how often it waited.
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void check(bool right, const char *what)
{
	if (right)
		return;
	prctl(PR_SET_NAME, "work-failed");
	perror(what);
	exit(1);
}

static void be(const std::string &kind) { prctl(PR_SET_NAME, ("work-" + kind).c_str()); }

static void opens(int number, const char *)
{
	for (int i = 0; i < number; i++) {
		int file = open("/dev/null", O_RDONLY);
		check(file >= 0, "open");
		close(file);
		check(open("/dev/null/nothing", O_RDONLY) < 0, "a file that is not there");
	}
}

static void reads(int number, const char *)
{
	char buffer[4096];
	int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_RDONLY);

	for (int i = 0; i < number; i++)
		check(read(zero, buffer, 4096) == 4096 && read(zero, buffer, 1) == 1 && read(null, buffer, 1) == 0, "read");
}

static void calls(int number, const char *)
{
	for (int i = 0; i < number; i++)
		getppid();
}

static void signals(int number, const char *)
{
	signal(54, SIG_IGN);
	for (int i = 0; i < number; i++)
		kill(getpid(), 54);
}

static void waits(int number, const char *)
{
	struct timespec millisecond = {0, 1000000};

	for (int i = 0; i < number; i++)
		nanosleep(&millisecond, nullptr);
}

// How often this process has waited, as the kernel counts it.
static long waited()
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw;
}

static void lookups(int number, const char *)
{
	struct addrinfo numeric = {}, *found;
	numeric.ai_flags = AI_NUMERICHOST;

	for (int i = 0; i < number; i++) {
		check(getaddrinfo("127.0.0.1", nullptr, &numeric, &found) == 0, "getaddrinfo");
		freeaddrinfo(found);
	}
}

static void throws(int number, const char *)
{
	for (int i = 0; i < number; i++)
		try {
			throw i;
		} catch (int) {
		}
}

static void files(int number, const char *directory)
{
	std::string path = std::string(directory) + "/made";

	for (int i = 0; i < number; i++)
		check(mkdir(path.c_str(), 0700) == 0 && rmdir(path.c_str()) == 0, "mkdir and rmdir");
}

static void disk(int number, const char *device)
{
	void *block;
	int file = open(device, O_RDONLY | O_DIRECT);

	check(posix_memalign(&block, 4096, 4096) == 0, "posix_memalign");
	for (int i = 0; i < number; i++)
		check(pread(file, block, 4096, i * 8192L) == 4096, device);
}

// Datagrams of 100 bytes from an address to itself.
static void datagrams(int number, const char *address)
{
	char datagram[100] = {};
	struct sockaddr_in at = {}, mine = {};
	socklen_t length = sizeof(at);
	int to = socket(AF_INET, SOCK_DGRAM, 0), from = socket(AF_INET, SOCK_DGRAM, 0);

	at.sin_family = mine.sin_family = AF_INET;
	check(inet_pton(AF_INET, address, &at.sin_addr) == 1, address);
	mine.sin_addr = at.sin_addr;
	check(bind(from, (struct sockaddr *)&mine, length) == 0, "bind");
	check(bind(to, (struct sockaddr *)&at, length) == 0 && getsockname(to, (struct sockaddr *)&at, &length) == 0, "bind");
	for (int i = 0; i < number; i++) {
		check(sendto(from, datagram, sizeof(datagram), 0, (struct sockaddr *)&at, length) == sizeof(datagram), "sendto");
		check(recv(to, datagram, sizeof(datagram), 0) == sizeof(datagram), "recv");
	}
}

static void packets(int number, const char *) { datagrams(number, "127.0.0.1"); }

// So many processes that end with status 7, and so many that a signal ends.
static void exits(int number, const char *)
{
	for (int i = 0; i < 2 * number; i++) {
		int status, child = fork();

		check(child >= 0, "fork");
		if (child == 0 && i % 2)
			_exit(7);
		if (child == 0)
			for (;;)
				pause();
		if (i % 2 == 0)
			kill(child, SIGKILL);
		check(waitpid(child, &status, 0) == child, "waitpid");
	}
}

// Connections to a listener that takes no more: their SYN is dropped, and sent again a second later.
static void segments(int number, const char *address)
{
	struct sockaddr_in at = {};
	socklen_t length = sizeof(at);
	int full = socket(AF_INET, SOCK_STREAM, 0), first = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_family = AF_INET;
	check(inet_pton(AF_INET, address, &at.sin_addr) == 1, address);
	check(bind(full, (struct sockaddr *)&at, length) == 0 && getsockname(full, (struct sockaddr *)&at, &length) == 0, "bind");
	check(listen(full, 0) == 0 && connect(first, (struct sockaddr *)&at, length) == 0, "the one connection");
	for (int i = 0; i < number; i++) {
		int more = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		check(connect(more, (struct sockaddr *)&at, length) == 0 || errno == EINPROGRESS, "connect");
		usleep(20000);
	}
	usleep(1500000);
}

int main(int arguments, char **argument)
{
	static const struct {
		const char *name;
		void (*work)(int, const char *);
	} kinds[] = {
		{"opens", opens}, {"reads", reads}, {"calls", calls}, {"signals", signals}, {"waits", waits}, {"lookups", lookups},
		{"throws", throws}, {"files", files}, {"disk", disk}, {"packets", packets}, {"segments", segments},
		{"datagrams", datagrams}, {"exits", exits},
	};

	for (int i = 1; i < arguments; i++) {
		std::string text = argument[i];
		size_t equals = text.find('='), colon = text.find(':');
		bool known = false;

		for (auto &kind : kinds) {
			if (text.compare(0, equals, kind.name))
				continue;
			known = true;
			be(kind.name);
			long before = waited();
			kind.work(atoi(text.c_str() + equals + 1), colon == std::string::npos ? "" : text.c_str() + colon + 1);
			printf("%s %ld\n", kind.name, waited() - before);
			be("done");
		}
		check(known, argument[i]);
	}
}
