/* One step of mpi_random_calls.c, in the middle of which this stands. What all ranks must give alike they draw from a common
   generator. */

struct shape {
  enum kind kind;
  enum form form;
  enum element element;
  MPI_Op op;
  int limit; /* of values */
  size_t count;
  unsigned root;
  int in_place;
  enum layout layout;
};

/* Mostly few, sometimes none, rarely many. */
static size_t drawn_count(struct generator* common) {
  const unsigned which = draw(common, 40), small = draw(common, 20), medium = draw(common, 2000),
                 large = draw(common, 60000);
  return 2 * (size_t)(which < 4 ? 0 : which < 28 ? small : which < 39 ? medium : 40000 + large);
}

static struct shape drawn_shape(struct generator* common) {
  struct shape shape;
  const unsigned op = draw(common, 12);
  shape.kind = (enum kind)draw(common, kinds);
  shape.form = (enum form)draw(common, 3);
#ifndef INIT
  if (shape.form == PERSISTENT) shape.form = NON_BLOCKING;
#endif
  shape.element = (enum element)draw(common, element_types);
  shape.count = drawn_count(common);
  /* MPICH aborts in large non-blocking reduce-scatters in place: it copies between ranges that overlap. */
  const int reduces = shape.kind == Allreduce || shape.kind == Reduce;
  if (shape.form == NON_BLOCKING && reduces && draw(common, 3) == 0) shape.count = 2 * (size_t)(40000 + draw(common, 40000));
  shape.root = draw(common, 64);
  shape.in_place = draw(common, 3) == 0;
  shape.layout = (enum layout)draw(common, layouts);
  const int is_float = shape.element == F64 || shape.element == F32;
  if (op == 11) shape.element = I32;
  shape.op = op == 11                ? user_op
             : op == 10 && !is_float ? MPI_BAND
             : op >= 8               ? MPI_MAX
             : op >= 6               ? MPI_MIN
             : op >= 4               ? MPI_PROD
                                     : MPI_SUM;
  /* MPICH 4.0 gives up a derived type too often after persistent calls. */
  if (shape.form == PERSISTENT) shape.layout = DENSE;
  /* Open MPI 4.1 now and then hangs in the next call when this one has begun. */
  if (shape.kind == Alltoallv && shape.form != BLOCKING) shape.in_place = 0;
  shape.limit = shape.op == MPI_PROD ? 2 : 15;
  return shape;
}

/* Elements that one rank has for another, in calls where that is uneven. */
static size_t uneven(uint64_t step, size_t count, int one, int other) {
  const uint64_t pair = (uint64_t)(one < other ? one * 64 + other : other * 64 + one);
  return count == 0 ? 0 : 2 * (size_t)(mixed(step * 4096 + pair) % (count / 2 + 1));
}

/* Lists of counts and displacements for one share a rank, with gaps between the shares, in units of the buffer's type; gives
   how many elements the buffer must have. counts: of elements. */
static size_t lay_out(const size_t* counts, int size, const struct buffer* like, int* mpi_counts, int* displacements) {
  size_t at = 2;
  for (int i = 0; i < size; ++i) {
    mpi_counts[i] = units(like, counts[i]);
    displacements[i] = units(like, at);
    at += counts[i] + 2 * (size_t)(i % 2);
  }
  return at + 2;
}

static int* new_list(struct operation* operation) {
  for (int i = 0;; ++i) {
    if (operation->lists[i] == NULL) return operation->lists[i] = calloc(64, sizeof(int));
  }
}

static void pairs_call(MPI_Comm comm, unsigned which, unsigned root, uint64_t step) {
  struct {
    double value;
    int place;
  } mine[3], result[3];
  memset(mine, 0, sizeof mine);
  memset(result, 0, sizeof result);
  for (int i = 0; i < 3; ++i) {
    mine[i].value = (double)(mixed(step * 64 + (uint64_t)(world_rank + i)) % 5);
    mine[i].place = world_rank;
  }
  if (which) {
    ++counted[Allreduce][BLOCKING];
    MPI_Allreduce(mine, result, 3, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
  } else {
    ++counted[Bcast][BLOCKING];
    MPI_Bcast(mine, 3, MPI_DOUBLE_INT, (int)root, comm);
  }
  for (int i = 0; i < 3; ++i) {
    const uint64_t both = (uint64_t)(which ? result : mine)[i].value * 64 + (uint64_t)(which ? result : mine)[i].place;
    digest += mixed(both ^ mixed(step * 64 + (uint64_t)world_rank));
  }
}

static void between_call(uint64_t step) {
  int mine = (int)(step % 1000) + world_rank, result = 0;
  ++counted[Allreduce][BLOCKING];
  MPI_Allreduce(&mine, &result, 1, MPI_INT, MPI_SUM, between);
  digest += mixed((uint64_t)result ^ mixed(step * 64 + (uint64_t)world_rank));
}

static void perform(MPI_Comm comm, int rank, int size, const struct shape* shape, uint64_t step) {
  struct operation operation = {.step = step};
  MPI_Request request = MPI_REQUEST_NULL;
  const enum form form = shape->form;
  const enum kind kind = shape->kind;
  const int root = (int)shape->root, is_root = rank == root, in_place = shape->in_place, p = size;
  const int moves = kind != Allreduce && kind != Reduce && kind != Reduce_scatter && kind != Reduce_scatter_block &&
                    kind != Scan && kind != Exscan;
  const enum layout layout = moves ? shape->layout : DENSE;
  struct buffer *in = &operation.input, *out = &operation.output;
  const struct buffer like = {.layout = layout};
  const size_t block = p > 0 && shape->count > 20000 ? shape->count / (size_t)p / 2 * 2 : shape->count;
  const uint64_t seed = step * 31 + (uint64_t)world_rank;
  size_t shares[64], whole = 0;
  for (int i = 0; i < p; ++i) {
    shares[i] = kind == Alltoallv ? uneven(step, block, rank, i) : uneven(step, block, i, i);
    whole += shares[i];
  }
  const int n = (int)shape->count, b = (int)block;
  const MPI_Op op = shape->op;
  int *in_counts = NULL, *in_places = NULL, *out_counts = NULL, *out_places = NULL;

#define IN(elements) (*in = new_buffer(shape->element, layout, elements), fill(in, 0, elements, seed, shape->limit))
#define OUT(elements) (*out = new_buffer(shape->element, layout, elements), fill(out, 0, elements, seed, shape->limit))
#define FROM (in_place ? MPI_IN_PLACE : in->memory)
  switch (kind) {
    case Barrier: DO(Barrier, barrier, comm); break;
    case Allreduce:
    case Scan:
    case Exscan:
      IN(shape->count);
      OUT(shape->count);
      if (kind == Allreduce) DO(Allreduce, allreduce, FROM, out->memory, n, in->type, op, comm);
      if (kind == Scan) DO(Scan, scan, FROM, out->memory, n, in->type, op, comm);
      if (kind == Exscan) DO(Exscan, exscan, FROM, out->memory, n, in->type, op, comm);
      break;
    case Reduce:
      IN(shape->count);
      if (is_root) OUT(shape->count);
      DO(Reduce, reduce, is_root ? FROM : in->memory, out->memory, n, in->type, op, root, comm);
      break;
    case Reduce_scatter_block:
      IN(block * (size_t)p);
      OUT(block * (size_t)(in_place ? p : 1));
      operation.left_open = out->bytes - block * width_of[shape->element];
      DO(Reduce_scatter_block, reduce_scatter_block, FROM, out->memory, b, in->type, op, comm);
      break;
    case Reduce_scatter:
      out_counts = new_list(&operation);
      for (int i = 0; i < p; ++i) out_counts[i] = (int)shares[i];
      IN(whole);
      OUT(in_place ? whole : shares[rank]);
      operation.left_open = out->bytes - shares[rank] * width_of[shape->element];
      DO(Reduce_scatter, reduce_scatter, FROM, out->memory, out_counts, in->type, op, comm);
      break;
    case Bcast:
      OUT(shape->count);
      DO(Bcast, bcast, out->memory, units(out, shape->count), out->type, root, comm);
      break;
    case Allgather:
      IN(block);
      OUT(block * (size_t)p);
      DO(Allgather, allgather, FROM, units(in, block), in->type, out->memory, units(out, block), out->type, comm);
      break;
    case Allgatherv:
    case Gatherv:
      IN(shares[rank]);
      out_counts = new_list(&operation);
      out_places = new_list(&operation);
      const size_t gathered = lay_out(shares, p, &like, out_counts, out_places);
      if (kind == Allgatherv || is_root) OUT(gathered);
      if (kind == Allgatherv) {
        DO(Allgatherv, allgatherv, FROM, units(in, shares[rank]), in->type, out->memory, out_counts, out_places, out->type,
           comm);
      } else {
        DO(Gatherv, gatherv, is_root ? FROM : in->memory, units(in, shares[rank]), in->type, out->memory, out_counts,
           out_places, is_root ? out->type : MPI_DATATYPE_NULL, root, comm);
      }
      break;
    case Gather:
      IN(block);
      if (is_root) OUT(block * (size_t)p);
      DO(Gather, gather, is_root ? FROM : in->memory, units(in, block), in->type, out->memory,
         is_root ? units(out, block) : 0, is_root ? out->type : MPI_DATATYPE_NULL, root, comm);
      break;
    case Scatter:
      if (is_root) IN(block * (size_t)p);
      OUT(block);
      DO(Scatter, scatter, in->memory, is_root ? units(in, block) : 0, is_root ? in->type : MPI_DATATYPE_NULL,
         is_root && in_place ? MPI_IN_PLACE : out->memory, units(out, block), out->type, root, comm);
      break;
    case Scatterv:
      in_counts = new_list(&operation);
      in_places = new_list(&operation);
      const size_t scattered = lay_out(shares, p, &like, in_counts, in_places);
      if (is_root) IN(scattered);
      OUT(shares[rank]);
      DO(Scatterv, scatterv, in->memory, in_counts, in_places, is_root ? in->type : MPI_DATATYPE_NULL,
         is_root && in_place ? MPI_IN_PLACE : out->memory, units(out, shares[rank]), out->type, root, comm);
      break;
    case Alltoall:
      IN(block * (size_t)p);
      OUT(block * (size_t)p);
      DO(Alltoall, alltoall, FROM, units(in, block), in->type, out->memory, units(out, block), out->type, comm);
      break;
    default: /* Alltoallv */
      in_counts = new_list(&operation);
      in_places = new_list(&operation);
      out_counts = new_list(&operation);
      out_places = new_list(&operation);
      IN(lay_out(shares, p, &like, in_counts, in_places));
      OUT(lay_out(shares, p, &like, out_counts, out_places));
      DO(Alltoallv, alltoallv, FROM, in_counts, in_places, in->type, out->memory, out_counts, out_places, out->type, comm);
      break;
  }
  if (form == PERSISTENT) { /* once: MPICH 4.0 forgets the communicator of some of them */
    if (step % 2) {
      MPI_Start(&request);
    } else {
      MPI_Startall(1, &request);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
  }
  if (kind == Exscan && rank == 0 && !in_place) { /* MPI leaves open what is there */
    memset(out->memory, 0, out->bytes);
  }
  if (form == NON_BLOCKING) {
    if (kind == Exscan && rank == 0) {
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      memset(out->memory, 0, out->bytes);
      finish(&operation);
    } else {
      requests[open_count] = request;
      operations[open_count++] = operation;
    }
  } else {
    finish(&operation);
  }
}

static void random_call(uint64_t step, struct generator* common) {
  struct shape shape = drawn_shape(common);
  const MPI_Comm comm = comms[draw(common, (unsigned)comm_count)];
  const unsigned special = draw(common, 32);
  if (special == 0) between_call(step);
  if (special == 0 || comm == MPI_COMM_NULL) return;
  int rank, size;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  shape.root %= (unsigned)size;
#ifdef MPICH_VERSION /* 4.0 may read from MPI_IN_PLACE itself where the root is not the first rank; see situations/ */
  if (shape.kind == Reduce && shape.root != 0) shape.in_place = 0;
#endif
  if (special < 3) {
    pairs_call(comm, special == 1, shape.root, step);
  } else if (special < 6) {
    exchange(comm, rank, size, shape.count, step);
  } else {
    perform(comm, rank, size, &shape, step);
  }
}
