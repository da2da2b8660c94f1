#include <vec.h>

int main(void) { return fixture_host(4) == 27 ? 0 : 1; }
