/* Situations in which MPI promises that a program goes on, each a few lines. Ends with status 0 where it does, and the
 * results are right. mpi_situations NAME */
#include <stdio.h>
#include <string.h>

#include "situations.h"

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*run)(void);
  } situations[] = {{"message_behind_collective", message_behind_collective},
                    {"first_call_returns", first_call_returns},
                    {"crossed", crossed},
                    {"small_and_large", small_and_large},
                    {"outstanding", outstanding},
                    {"freed_early", freed_early},
                    {"in_place_at_every_root", in_place_at_every_root},
                    {"other_types_elsewhere", other_types_elsewhere},
                    {"persistent", persistent},
                    {"persistent_with_freed_types", persistent_with_freed_types},
                    {"persistent_in_any_order", persistent_in_any_order},
                    {"persistent_independent", persistent_independent},
                    {"persistent_freed_and_made_again", persistent_freed_and_made_again},
                    {"persistent_in_wrong_order", persistent_in_wrong_order},
                    {"overlapping", overlapping},
                    {"sizes_by_pair", sizes_by_pair},
                    {"threads_make_communicators", threads_make_communicators},
                    {"freed_and_made_again", freed_and_made_again},
                    {"freed_in_many_orders", freed_in_many_orders},
                    {"unused_communicators_take_little", unused_communicators_take_little},
                    {"errors_that_return", errors_that_return},
                    {"one_exits", one_exits},
                    {"one_aborts", one_aborts},
                    {"a_child_calls", a_child_calls}};
  int threading = argc == 2 && strncmp(argv[1], "threads", 7) == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, threading, &threading);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int known = 0;
  for (size_t i = 0; i < sizeof situations / sizeof situations[0]; ++i) {
    for (int j = 1; j < argc; ++j) {
      if (strcmp(argv[j], situations[i].name) != 0) continue;
      situations[i].run();
      ++known;
    }
  }
  expect(known == argc - 1 && known > 0, "there is no such situation");
  MPI_Finalize();
  if (threads_named(PERFORMING) == 0) return 0;
  fprintf(stderr, "rank %d: threads are left behind MPI_Finalize\n", rank);
  return 1;
}
