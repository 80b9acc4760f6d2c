// A sample of the matrix's cells on ranks that are processes: over shared memory, over UCX on one host, and on two hosts. In
// f64 each equals one rank; in narrow types it adds no more to one rank's rounding than that itself. The processes of a
// route start once, and train all cells.
//
// matrix_processes_test.py makes the hosts and runs this program. The sample is another one every day; its seed is printed,
// and
// --gtest_random_seed=SEED draws it again. With all tests, the sample is larger.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <thread>

#include "by_hand.hpp"
#include "matrix_sample.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/processes/fork_ranks.hpp"

namespace parity {
namespace {

constexpr int processes = 8;
constexpr std::int64_t steps = 2;
constexpr std::array narrow_types = {DType::f32, DType::bf16, DType::f16};

struct DrawnCell {
  MatrixCell cell;
  std::map<DType, double> alone;  // the error of one rank's gradients, by type
};

GradientError error_of_one_rank(const MatrixCell& cell, DType dtype) {
  GradientError error;
  run_threads(1, [&](const Communicator& world) {
    error = own_gradient_error(Mesh(world, {}), on_one_rank(options_of(cell, dtype)),
                               of_one_rank(options_of(cell), steps).gradients.front());
  });
  return error;
}

// By number of ranks. What one rank gives is computed here, before ranks are forked, which inherit it.
const std::map<int, std::vector<DrawnCell>>& drawn_cells_of_processes() {
  static const std::map<int, std::vector<DrawnCell>> drawn = [] {
    std::map<int, std::vector<DrawnCell>> result;
    const std::vector<MatrixCell> cells = matrix_cells();
    for (int ranks = 2; ranks <= processes; ++ranks) {
      std::vector<MatrixCell> those;
      std::ranges::copy_if(cells, std::back_inserter(those),
                           [&](const MatrixCell& cell) { return cell.layout.ranks() == ranks; });
      for (const MatrixCell& cell : sample(those, all_tests() ? 12 : 3)) {
        DrawnCell one{.cell = cell};
        for (const DType dtype : narrow_types) one.alone[dtype] = error_of_one_rank(cell, dtype).relative();
        result[ranks].push_back(one);
      }
    }
    std::cout << "seed " << seed_of_the_day() << std::endl;
    return result;
  }();
  return drawn;
}

GradientError summed(const Communicator& world, GradientError error) {
  std::array<double, 2> both = {error.squares, error.errors};
  world.all_reduce(both.data(), both.data(), 2, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
  return {both[0], both[1]};
}

void expect_as_one_rank(const Communicator& group, const DrawnCell& drawn) {
  const MatrixCell& cell = drawn.cell;
  const TrainingOptions options = options_of(cell);
  const Trace& expected = of_one_rank(options, steps);
  const Mesh mesh(group, cell.layout.mesh());
  {
    Trainer trainer(mesh, options);
    const Trace trace = advance(trainer, 0, steps);
    EXPECT_EQ(compare(expected, trace, parity_tolerance, Has::those_of_its_stage).all(), "")
        << text_of(cell) << ", rank " << group.rank();
  }
  for (const DType dtype : narrow_types) {
    const GradientError own = own_gradient_error(mesh, options_of(cell, dtype), expected.gradients.front());
    EXPECT_LE(summed(group, own).relative(), 2 * drawn.alone.at(dtype)) << text_of(cell) << ", " << name(dtype);
  }
}

MatrixCell control_cell() { return {.layout = {.data = 2, .tensor = 2, .ring = 2}}; }

TrainingOptions control_options(DType dtype = DType::f64) {
  TrainingOptions options = options_of(control_cell(), dtype);
  options.clip_norm = 0;
  return options;
}

// Where the records lack the data-parallel ranks, gradients are wrong in every type; else they are right.
void expect_to_see_a_wrong_group(const Communicator& group) {
  const Fault without_data{.in_records = [](Parameters& parameters) {
    for (const auto& parameter : parameters.all()) leave_out_of_sum(*parameter, Axis::data);
  }};
  const Trace& expected = of_one_rank(control_options());
  for (const Fault& fault : {Fault{}, without_data}) {
    const bool right = !fault.in_records;
    const Trace trace = train_by_hand(group, control_cell().layout, control_options(), fault);
    EXPECT_EQ(compare(expected, trace, parity_tolerance).gradient.empty(), right);
    GradientError error;
    error.add(train_by_hand(group, control_cell().layout, control_options(DType::f32), fault, 1).gradients.front(),
              expected.gradients.front(), 1);
    EXPECT_EQ(summed(group, error).relative() < 1e-5, right);
  }
}

// A group's members lie apart, so that those of a pair are on two hosts.
void expect_all_cells_as_one_rank(const Communicator& world) {
  for (const auto& [ranks, cells] : drawn_cells_of_processes()) {
    const int groups = world.size() / ranks;
    const int number = world.rank() % groups;
    const Communicator group = world.split(world.rank() / groups < ranks ? number : -1, world.rank(), "cells");
    if (!group) continue;
    for (std::size_t i = static_cast<std::size_t>(number); i < cells.size(); i += static_cast<std::size_t>(groups)) {
      expect_as_one_rank(group, cells[i]);
    }
  }
  expect_to_see_a_wrong_group(world);
  if (testing::Test::HasFailure()) throw Error(ErrorCode::internal, "Cells differ from one rank, see above.");
  world.barrier(Stream::inline_()).wait();
}

void compute_what_one_rank_gives() {
  drawn_cells_of_processes();
  of_one_rank(control_options());
}

TEST(MatrixProcesses, EqualOneRankOverSharedMemory) {
  compute_what_one_rank_gives();
  EXPECT_EQ(launch(processes, expect_all_cells_as_one_rank), 0);
}

TEST(MatrixProcesses, EqualOneRankOverUcx) {
#ifdef STRETTO_HAVE_UCX
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  compute_what_one_rank_gives();
  EXPECT_EQ(launch(processes, expect_all_cells_as_one_rank), 0);
#else
  GTEST_SKIP() << "this build is without UCX";
#endif
}

// Enters the namespaces that a process holds: all of them only before this process has threads.
void enter(const std::string& holder, const std::vector<std::string>& namespaces) {
  for (const std::string& each : namespaces) {
    const int file = open(fmt::format("/proc/{}/ns/{}", holder, each).c_str(), O_RDONLY | O_CLOEXEC);
    const int status = file < 0 ? -1 : setns(file, 0);
    if (file >= 0) close(file);
    if (status != 0) throw Error(ErrorCode::unavailable, "Cannot enter the namespaces of process " + holder + ".");
  }
}

TEST(MatrixProcesses, EqualOneRankOnTwoHosts) {
#ifdef STRETTO_HAVE_UCX
  const char* const hosts = std::getenv("MATRIX_HOSTS");  // the address of the first, and the process that holds each
  if (hosts == nullptr) {
    const char* const why = std::getenv("MATRIX_NO_HOSTS");
    GTEST_SKIP() << (why != nullptr ? why : "tests/parity/matrix_processes_test.py makes two hosts and runs this");
  }
  std::istringstream words(hosts);
  std::string address;
  std::array<std::string, 2> holders;
  words >> address >> holders[0] >> holders[1];
  compute_what_one_rank_gives();
  MeetingPoint point;
  std::thread([&] {  // a thread may be on the network of another host than the others of its process
    enter(holders[0], {"net"});
    point = open_meeting(address);
  })
      .join();
  EXPECT_EQ(fork_ranks(processes,
                       [&](int rank) {
                         enter(holders[static_cast<std::size_t>(rank * 2 / processes)], {"net", "uts", "mnt"});
                         MeetingPoint own = point;
                         if (rank != 0) close(std::exchange(own.listener, -1));
                         return run(connect(rank, processes, own), expect_all_cells_as_one_rank);
                       }),
            0);
  close(point.listener);
#else
  GTEST_SKIP() << "this build is without UCX";
#endif
}

}  // namespace
}  // namespace parity
