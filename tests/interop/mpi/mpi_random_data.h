/* Element types, their values, and how elements lie in memory: for mpi_random_calls.c. */
#ifndef MPI_RANDOM_DATA_H
#define MPI_RANDOM_DATA_H
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_random_numbers.h"

enum element { F64, F32, I32, I64, U8, I8, U32, U64, I16, element_types };
static const size_t width_of[] = {8, 4, 4, 8, 1, 1, 4, 8, 2};
static MPI_Datatype mpi_type_of(enum element element) {
  const MPI_Datatype types[] = {MPI_DOUBLE, MPI_FLOAT,    MPI_INT,      MPI_LONG, MPI_UNSIGNED_CHAR,
                                MPI_INT8_T, MPI_UNSIGNED, MPI_UINT64_T, MPI_SHORT};
  return types[element];
}

static void put(void* where, enum element element, int value) {
  const double f64 = value;
  const float f32 = (float)value;
  const int64_t integer = value; /* little-endian: its first bytes are the narrower integers */
  const void* const from = element == F64 ? (const void*)&f64 : element == F32 ? (const void*)&f32 : (const void*)&integer;
  memcpy(where, from, width_of[element]);
}

/* How elements lie: one after the other; with gaps; in pairs with their second element first. Counts and displacements are
   even. MPI lets each rank choose for itself, but Open MPI 4.1 may then choose different algorithms on two ranks, and hang:
   here they choose alike, and situations/data.c has what is left out. */
enum layout { DENSE, GAPS, SWAPPED, layouts };

struct buffer {
  enum element element;
  enum layout layout;
  MPI_Datatype type;
  size_t elements;
  char* memory; /* NULL for none */
  size_t bytes;
};

static char* address_of(const struct buffer* buffer, size_t i) {
  const size_t place = buffer->layout == GAPS ? 2 * i : buffer->layout == SWAPPED ? i ^ 1 : i;
  return buffer->memory + place * width_of[buffer->element];
}

/* What MPI is to be told for so many elements, as a count or as a displacement. */
static int units(const struct buffer* buffer, size_t elements) {
  return (int)(buffer->layout == SWAPPED ? elements / 2 : elements);
}

static struct buffer new_buffer(enum element element, enum layout layout, size_t elements) {
  struct buffer buffer = {element, layout, mpi_type_of(element), elements, NULL, 0};
  const MPI_Aint width = (MPI_Aint)width_of[element];
  if (layout == GAPS) MPI_Type_create_resized(mpi_type_of(element), 0, 2 * width, &buffer.type);
  if (layout == SWAPPED) {
    const int lengths[] = {1, 1};
    const int places[] = {1, 0};
    MPI_Type_indexed(2, lengths, places, mpi_type_of(element), &buffer.type);
  }
  if (layout != DENSE) MPI_Type_commit(&buffer.type);
  buffer.bytes = elements * (size_t)width * (layout == GAPS ? 2 : 1);
  buffer.memory = malloc(buffer.bytes + 8);
  memset(buffer.memory, 0x5a, buffer.bytes + 8);
  return buffer;
}

/* limit: values are from 1 to it. */
static void fill(const struct buffer* buffer, size_t first, size_t count, uint64_t seed, int limit) {
  for (size_t i = first; i < first + count; ++i) {
    put(address_of(buffer, i), buffer->element, 1 + (int)(mixed(seed * 1000003u + i) % (unsigned)limit));
  }
}

static void forget(struct buffer* buffer) {
  if (buffer->memory != NULL && buffer->layout != DENSE) MPI_Type_free(&buffer->type);
  free(buffer->memory);
}

/* Of all its bytes, gaps as well. */
static uint64_t digest_of(const struct buffer* buffer) {
  uint64_t digest = 1469598103934665603u;
  for (size_t i = 0; i < buffer->bytes + 8; ++i) digest = (digest ^ (unsigned char)buffer->memory[i]) * 1099511628211u;
  return digest;
}

#endif
