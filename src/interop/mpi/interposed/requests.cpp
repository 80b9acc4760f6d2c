// MPI's calls that wait for requests, test or start them. If served operations are among the requests, waiting is repeated
// testing: operations that are done are completed for the MPI between two tests.
#include <sched.h>

#include "door.hpp"

namespace stretto::mpi_door {
namespace {

// test(done) calls the MPI's test and sets `done`.
template <class Test>
int wait_by(Test test, bool only_ours) {
  for (int looks = 0;; ++looks) {
    guarded([] { door().requests.complete_done(); });
    bool done = false;
    const int result = test(done);
    if (done || result != MPI_SUCCESS) return result;
    door().requests.pause(looks, only_ours);
  }
}

int active_among(const MPI_Request* requests, int count) {
  int active = 0;
  for (int i = 0; i < count; ++i) active += requests[i] != MPI_REQUEST_NULL;
  return active;
}

// A test that the program asked for. A program that tests in a loop yields its core to the threads that do the work.
template <class Test>
int test_by(Test test, const int& done) {
  const bool ours = door().requests.any_started();
  if (ours) guarded([] { door().requests.complete_done(); });
  const int result = test();
  if (ours && done == 0) sched_yield();
  return result;
}

}  // namespace
}  // namespace stretto::mpi_door

using namespace stretto::mpi_door;  // NOLINT(google-build-using-namespace): the functions below have MPI's names, in no
                                    // namespace

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  if (door().requests.ours_among(request, 1) == 0) return PMPI_Wait(request, status);
  return wait_by(
      [&](bool& done) {
        int flag = 0;
        const int result = PMPI_Test(request, &flag, status);
        done = flag != 0;
        return result;
      },
      true);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
  const int ours = door().requests.ours_among(requests, count);
  if (ours == 0) return PMPI_Waitall(count, requests, statuses);
  return wait_by(
      [&](bool& done) {
        int flag = 0;
        const int result = PMPI_Testall(count, requests, &flag, statuses);
        done = flag != 0;
        return result;
      },
      ours == active_among(requests, count));
}

int MPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status) {
  const int ours = door().requests.ours_among(requests, count);
  if (ours == 0) return PMPI_Waitany(count, requests, index, status);
  return wait_by(
      [&](bool& done) {
        int flag = 0;
        const int result = PMPI_Testany(count, requests, index, &flag, status);
        done = flag != 0;
        return result;
      },
      ours == active_among(requests, count));
}

int MPI_Waitsome(int count, MPI_Request requests[], int* done_count, int indices[], MPI_Status statuses[]) {
  const int ours = door().requests.ours_among(requests, count);
  if (ours == 0) return PMPI_Waitsome(count, requests, done_count, indices, statuses);
  return wait_by(
      [&](bool& done) {
        const int result = PMPI_Testsome(count, requests, done_count, indices, statuses);
        done = *done_count != 0;
        return result;
      },
      ours == active_among(requests, count));
}

int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  return test_by([&] { return PMPI_Test(request, flag, status); }, *flag);
}

int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status statuses[]) {
  return test_by([&] { return PMPI_Testall(count, requests, flag, statuses); }, *flag);
}

int MPI_Testany(int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status) {
  return test_by([&] { return PMPI_Testany(count, requests, index, flag, status); }, *flag);
}

int MPI_Testsome(int count, MPI_Request requests[], int* done_count, int indices[], MPI_Status statuses[]) {
  return test_by([&] { return PMPI_Testsome(count, requests, done_count, indices, statuses); }, *done_count);
}

int MPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* status) {
  return test_by([&] { return PMPI_Request_get_status(request, flag, status); }, *flag);
}

int MPI_Start(MPI_Request* request) {
  int result = MPI_SUCCESS;
  guarded([&] {
    if (!door().requests.begin(request)) result = PMPI_Start(request);
  });
  return result;
}

int MPI_Startall(int count, MPI_Request requests[]) {
  int result = MPI_SUCCESS;
  for (int i = 0; i < count && result == MPI_SUCCESS; ++i) result = MPI_Start(&requests[i]);
  return result;
}

int MPI_Request_free(MPI_Request* request) {
  door().requests.forget(*request);
  return PMPI_Request_free(request);
}
