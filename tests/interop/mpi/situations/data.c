/* Where elements lie, how many they are, and what type they have. */
#include <stddef.h>

#include "situations.h"

/* Every root may reduce in place. */
void in_place_at_every_root(void) {
  enum { count = 722 };
  long data[count];
  for (int root = 0; root < size; ++root) {
    for (int i = 0; i < count; ++i) data[i] = rank + i;
    MPI_Reduce(rank == root ? MPI_IN_PLACE : data, rank == root ? data : NULL, count, MPI_LONG, MPI_SUM, root,
               MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) {
      expect(data[i] == (rank == root ? size * (size - 1) / 2 + (long)size * i : rank + i), "a sum is wrong");
    }
  }
}

static void number(int* data, int count) {
  for (int i = 0; i < count; ++i) data[i] = 1000000 * rank + i;
}

static void expect_numbers(const int* data, int count, int by, int from) {
  for (int i = 0; i < count; ++i) expect(data[i] == 1000000 * by + from + i, "an element is wrong");
}

/* MPI forbids buffers that overlap; MPICH refuses those that begin at one place, other MPIs go on. */
void overlapping(void) {
  enum { count = 3000, most = 8 };
  static int data[(most + 2) * count];
  int counts[most], places[most], zeros[most];
  for (int i = 0; i < size; ++i) counts[i] = count, places[i] = i * count, zeros[i] = 0;
  for (int i = 0; i < (most + 2) * count; ++i) data[i] = 1;
  MPI_Comm all = MPI_COMM_WORLD;
  MPI_Allreduce(data, data + count / 2, count, MPI_INT, MPI_SUM, all);
  expect(data[count / 2] == size && data[3 * count / 2 - 1] == size, "a sum is wrong");
  for (int i = 0; i < (most + 2) * count; ++i) data[i] = 1;
  MPI_Reduce(data + 5, data, count, MPI_INT, MPI_SUM, size - 1, all);
  expect(rank != size - 1 || (data[0] == size && data[count - 1] == size), "a sum at the root is wrong");
  for (int i = 0; i < (most + 2) * count; ++i) data[i] = 1;
  MPI_Reduce_scatter_block(data, data + 7, count, MPI_INT, MPI_SUM, all);
  expect(data[7] == size && data[count + 6] == size, "a part of a sum is wrong");
  /* What a rank finds is what the sender had before the call. */
  number(data, (most + 2) * count);
  MPI_Allgather(data + 1, count, MPI_INT, data, count, MPI_INT, all);
  for (int i = 0; i < size; ++i) expect_numbers(data + i * count, count, i, 1);
  number(data, (most + 2) * count);
  MPI_Alltoall(data + 1, count, MPI_INT, data, count, MPI_INT, all);
  for (int i = 0; i < size; ++i) expect_numbers(data + i * count, count, i, 1 + rank * count);
  number(data, (most + 2) * count);
  MPI_Gather(data + 1, count, MPI_INT, data, count, MPI_INT, 0, all);
  for (int i = 0; rank == 0 && i < size; ++i) expect_numbers(data + i * count, count, i, 1);
  number(data, (most + 2) * count);
  MPI_Scatter(data, count, MPI_INT, data + 1, count, MPI_INT, 0, all);
  expect_numbers(data + 1, count, 0, rank * count);
  for (int shift = 1; shift <= count / 2; shift += count / 2 - 1) {
    number(data, (most + 2) * count);
    MPI_Alltoallv(data, counts, places, MPI_INT, data + shift, counts, places, MPI_INT, all);
    for (int i = 0; i < size; ++i) expect_numbers(data + shift + i * count, count, i, rank * count);
  }
  number(data, (most + 2) * count);
  MPI_Gatherv(data + 1, count, MPI_INT, data, counts, places, MPI_INT, 0, all);
  for (int i = 0; rank == 0 && i < size; ++i) expect_numbers(data + i * count, count, i, 1);
  MPI_Gatherv(data + 1, count, MPI_INT, data, counts, zeros, MPI_INT, 0, all); /* some rank's data comes last */
  number(data, (most + 2) * count);
  MPI_Scatterv(data, counts, places, MPI_INT, data + 1, count, MPI_INT, 0, all);
  expect_numbers(data + 1, count, 0, rank * count);
  MPI_Barrier(all);
}

/* Some messages of a call are small and others large, on some ranks only; again and again, so that ranks get ahead. */
void sizes_by_pair(void) {
  enum { most = 8, longest = 4000 };
  static int in[most * longest], out[most * longest];
  int ins[most], outs[most], places[most];
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < size; ++i) {
      const int to = (7 * rank + 3 * i + round) % 5, from = (7 * i + 3 * rank + round) % 5; /* a kind of size */
      ins[i] = to == 0 ? longest : to == 1 ? 0 : to == 2 ? 500 : 40 * to;
      outs[i] = from == 0 ? longest : from == 1 ? 0 : from == 2 ? 500 : 40 * from;
      places[i] = i * longest;
      for (int j = 0; j < ins[i]; ++j) in[places[i] + j] = 1000 * round + 100 * rank + 10 * i + j % 9;
    }
    for (int i = 0; i < most * longest; ++i) out[i] = -1;
    MPI_Request request;
    if (round % 3 == 0) MPI_Alltoallv(in, ins, places, MPI_INT, out, outs, places, MPI_INT, MPI_COMM_WORLD);
    if (round % 3 == 1) {
      MPI_Ialltoallv(in, ins, places, MPI_INT, out, outs, places, MPI_INT, MPI_COMM_WORLD, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (round % 3 == 2) {
      for (int i = 0; i < size; ++i) {
        int theirs[most];
        for (int j = 0; j < size; ++j) theirs[j] = rank == i ? outs[j] : 0;
        if (round % 2) {
          MPI_Gatherv(in + places[i], ins[i], MPI_INT, out, theirs, places, MPI_INT, i, MPI_COMM_WORLD);
        } else {
          MPI_Scatterv(in, ins, places, MPI_INT, out + places[i], outs[i], MPI_INT, i, MPI_COMM_WORLD);
        }
      }
    }
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < longest; ++j) {
        const int right = j < outs[i] ? 1000 * round + 100 * i + 10 * rank + j % 9 : -1;
        expect(out[places[i] + j] == right, "an element is wrong");
      }
    }
  }
}

/* Of each collective that moves data: two elements for each rank, or from it. */
void other_types_elsewhere(void) {
  enum { most = 8 };
  for (int kind = 0; kind < 8; ++kind) {
    for (int root = 0; root < size; ++root) {
      struct layout in = own_layout(), out = own_layout();
      int counts[most], places[most];
      const int share = 2 / in.elements, first = 2 * rank;
      for (int i = 0; i < 2 * size; ++i) *element(&in, i) = 100 * rank + i;
      for (int i = 0; i < size; ++i) counts[i] = share, places[i] = share * i;
      MPI_Comm all = MPI_COMM_WORLD;
      if (kind == 0) MPI_Bcast(in.memory, share * size, in.type, root, all);
      if (kind == 1) MPI_Allgather(in.memory, share, in.type, out.memory, share, out.type, all);
      if (kind == 2) MPI_Allgatherv(in.memory, share, in.type, out.memory, counts, places, out.type, all);
      if (kind == 3) MPI_Gather(in.memory, share, in.type, out.memory, share, out.type, root, all);
      if (kind == 4) MPI_Gatherv(in.memory, share, in.type, out.memory, counts, places, out.type, root, all);
      if (kind == 5) MPI_Scatter(in.memory, share, in.type, out.memory, share, out.type, root, all);
      if (kind == 6) MPI_Scatterv(in.memory, counts, places, in.type, out.memory, share, out.type, root, all);
      if (kind == 7) MPI_Alltoallv(in.memory, counts, places, in.type, out.memory, counts, places, out.type, all);
      for (int from = 0; from < size; ++from) {
        for (int i = 0; i < 2; ++i) {
          const int gathers = kind >= 1 && kind <= 4, to_root_only = kind == 3 || kind == 4;
          if (kind == 0) expect(*element(&in, 2 * from + i) == 100 * root + 2 * from + i, "a broadcast is wrong");
          if (gathers && (rank == root || !to_root_only)) {
            expect(*element(&out, 2 * from + i) == 100 * from + i, "a gather is wrong");
          }
          if (kind == 5 || kind == 6) expect(*element(&out, i) == 100 * root + 2 * rank + i, "a scatter is wrong");
          if (kind == 7) expect(*element(&out, 2 * from + i) == 100 * from + first + i, "an exchange is wrong");
        }
      }
      if (rank % 3 != 0) MPI_Type_free(&in.type);
      if (rank % 3 != 0) MPI_Type_free(&out.type);
    }
  }
}
