#define BCC 149
