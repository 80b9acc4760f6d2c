/* The situations, by the files that they are in, and what these files share. */
#pragma once
#include "../persistent_names.h"

extern int rank, size; /* in MPI_COMM_WORLD */

/* Ends the job with this sentence where the truth is 0. */
void expect(int truth, const char* what);

/* Threads of this process whose name begins so. */
int threads_named(const char* beginning);
#define PERFORMING "mpi persistent" /* Stretto's, for persistent calls */

/* So many integers are enough for a broadcast that does not block to be served; for a reduction, `enough` are. */
enum { many = 1 << 20, enough = 1 << 16 };

/* Starts a sum of `enough` ones times `factor`, in memory that sum_is() frees. */
struct sum {
  int *mine, *all, factor;
  MPI_Request request;
};
void start_sum(struct sum* sum, int factor, MPI_Comm comm);
int sum_is(struct sum* sum, int ranks);

/* Each rank has the same elements in a layout of its own: in a row, with gaps, or in pairs whose second element is first. */
struct layout {
  MPI_Datatype type;
  int elements; /* of a unit of the type */
  int memory[64];
};
struct layout own_layout(void);
int* element(struct layout* layout, int i);

/* starts.c */
void message_behind_collective(void);
void first_call_returns(void);
void crossed(void);
void small_and_large(void);
void outstanding(void);

/* data.c */
void in_place_at_every_root(void);
void overlapping(void);
void sizes_by_pair(void);
void other_types_elsewhere(void);

/* persistent.c */
void persistent(void);
void persistent_with_freed_types(void);
void persistent_in_any_order(void);
void persistent_independent(void);
void persistent_freed_and_made_again(void);
void persistent_in_wrong_order(void);

/* communicators.c */
void freed_early(void);
void freed_and_made_again(void);
void freed_in_many_orders(void);
void unused_communicators_take_little(void);
void threads_make_communicators(void);

/* endings.c */
void errors_that_return(void);
void one_exits(void);
void one_aborts(void);
void a_child_calls(void);
