/* Errors, and ranks that end. */
#include <sys/wait.h>
#include <unistd.h>

#include "situations.h"

void errors_that_return(void) {
  int word = 0;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  expect(MPI_Bcast(&word, -1, MPI_INT, 0, MPI_COMM_WORLD) != MPI_SUCCESS, "a negative count was taken");
  expect(MPI_Bcast(&word, 1, MPI_INT, size, MPI_COMM_WORLD) != MPI_SUCCESS, "a root that is none was taken");
  expect(MPI_Allreduce(&word, &word + 1, 1, MPI_DATATYPE_NULL, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS, "no type was taken");
  expect(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS, "the barrier failed");
}

/* For the test to look at what is left: one rank goes, the others wait for it. */
void one_exits(void) {
  struct sum sum;
  MPI_Barrier(MPI_COMM_WORLD);
  start_sum(&sum, 1, MPI_COMM_WORLD);
  if (rank == 1) _exit(3);
  MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* A child of fork() has no part in the job: its call fails, it ends at once, and the ranks go on. */
void a_child_calls(void) {
  int one = 1, sum = 0, status = 0;
  pid_t child;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  child = fork();
  if (child == 0) {
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    _exit(0);
  }
  expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1, "the child did not fail");
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(sum == size, "the ranks do not go on");
}

void one_aborts(void) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) MPI_Abort(MPI_COMM_WORLD, 3);
  MPI_Barrier(MPI_COMM_WORLD);
}
