/* Random numbers that are the same everywhere, for the programs beside this file. */
#ifndef MPI_RANDOM_NUMBERS_H
#define MPI_RANDOM_NUMBERS_H
#include <stdint.h>

static uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct generator {
  uint64_t state;
};
static unsigned draw(struct generator* of, unsigned below) {
  of->state = mixed(of->state);
  return (unsigned)((of->state >> 11) % below);
}

#endif
