// mpi_outstanding_loop KIND CALLS together|one_by_one SECONDS WARMUP BYTES... times non-blocking collectives of the MPI with
// which it is compiled, on one host: CALLS of them are started on 4 communicators, and then completed, either together or by
// each rank in an order of its own. KIND is one of the names below, or mixed for all of them in turn. Rank 0 prints a line
// with a JSON object for each size: the most bytes that a rank has in one buffer.
#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "mpi_loop.hpp"

namespace {

const char* const names[] = {"all_reduce", "reduce",       "reduce_scatter", "broadcast",    "all_gather",
                             "gather",     "scatter",      "all_to_all",     "all_gather_v", "gather_v",
                             "scatter_v",  "all_to_all_v", "barrier"};

// One collective of integers. All ranks give all others the same number of them.
class Call {
 public:
  enum Kind {
    all_reduce,
    reduce,
    reduce_scatter,
    broadcast,
    all_gather,
    gather,
    scatter,
    all_to_all,
    all_gather_v,
    gather_v,
    scatter_v,
    all_to_all_v,
    barrier,
    kinds
  };

  Call(Kind kind, int root, std::int64_t bytes, MPI_Comm comm)
      : kind_(kind), comm_(comm), root_(root), whole_(static_cast<int>(bytes / sizeof(int))) {
    const bool is_whole = kind == all_reduce || kind == reduce || kind == broadcast;
    count_ = is_whole ? whole_ : std::max(1, whole_ / ranks);
    whole_ = is_whole ? whole_ : count_ * ranks;
    in_.resize(static_cast<std::size_t>(whole_));
    out_.resize(in_.size(), -1);
    counts_.resize(static_cast<std::size_t>(ranks), count_);
    for (int i = 0; i < ranks; ++i) places_.push_back(i * count_);
    for (int i = 0; i < whole_; ++i) in_[static_cast<std::size_t>(i)] = given(rank, i);
    if (kind == broadcast && rank == root) out_ = in_;
  }

  void start(MPI_Request* request) {
    const int* const in = in_.data();
    const int* const counts = counts_.data();
    const int* const places = places_.data();
    int* const out = out_.data();
    const auto i = MPI_INT;
    switch (kind_) {
      case all_reduce: MPI_Iallreduce(in, out, count_, i, MPI_SUM, comm_, request); break;
      case reduce: MPI_Ireduce(in, out, count_, i, MPI_SUM, root_, comm_, request); break;
      case reduce_scatter: MPI_Ireduce_scatter_block(in, out, count_, i, MPI_SUM, comm_, request); break;
      case broadcast: MPI_Ibcast(out, count_, i, root_, comm_, request); break;
      case all_gather: MPI_Iallgather(in, count_, i, out, count_, i, comm_, request); break;
      case gather: MPI_Igather(in, count_, i, out, count_, i, root_, comm_, request); break;
      case scatter: MPI_Iscatter(in, count_, i, out, count_, i, root_, comm_, request); break;
      case all_to_all: MPI_Ialltoall(in, count_, i, out, count_, i, comm_, request); break;
      case all_gather_v: MPI_Iallgatherv(in, count_, i, out, counts, places, i, comm_, request); break;
      case gather_v: MPI_Igatherv(in, count_, i, out, counts, places, i, root_, comm_, request); break;
      case scatter_v: MPI_Iscatterv(in, counts, places, i, out, count_, i, root_, comm_, request); break;
      case all_to_all_v: MPI_Ialltoallv(in, counts, places, i, out, counts, places, i, comm_, request); break;
      default: MPI_Ibarrier(comm_, request);
    }
  }

  int wrong() const {
    int wrong = 0;
    for (int i = 0; i < results(); ++i) wrong += out_[static_cast<std::size_t>(i)] != expected(i);
    return wrong;
  }

 private:
  static int given(int of, int i) { return 1000 * of + i; }
  static int sum(int i) { return 1000 * ranks * (ranks - 1) / 2 + ranks * i; }

  int results() const {
    switch (kind_) {
      case barrier: return 0;
      case all_gather:
      case all_gather_v:
      case all_to_all:
      case all_to_all_v: return whole_;
      case gather:
      case gather_v: return rank == root_ ? whole_ : 0;
      case reduce: return rank == root_ ? count_ : 0;
      default: return count_;
    }
  }

  int expected(int i) const {
    switch (kind_) {
      case all_reduce:
      case reduce: return sum(i);
      case reduce_scatter: return sum(rank * count_ + i);
      case broadcast: return given(root_, i);
      case scatter:
      case scatter_v: return given(root_, rank * count_ + i);
      case all_to_all:
      case all_to_all_v: return given(i / count_, rank * count_ + i % count_);
      default: return given(i / count_, i % count_);
    }
  }

  Kind kind_;
  MPI_Comm comm_;
  int root_;
  int whole_, count_;  // elements of the largest buffer, and of one rank's share
  std::vector<int> in_, out_, counts_, places_;
};

class Outstanding {
 public:
  Outstanding(const std::string& kind, int calls, std::int64_t bytes, const std::array<MPI_Comm, 4>& comms)
      : requests_(static_cast<std::size_t>(calls)) {
    const auto* const found = std::find(std::begin(names), std::end(names), kind);
    if (found == std::end(names) && kind != "mixed") fail("'" + kind + "' is no collective of this program.");
    for (int i = 0; i < calls; ++i) {
      const auto of = static_cast<Call::Kind>(kind == "mixed" ? i % Call::kinds : found - std::begin(names));
      calls_.emplace_back(of, i % ranks, bytes, comms[static_cast<std::size_t>(i) * comms.size() / requests_.size()]);
    }
  }

  void perform(bool together) {
    const auto count = static_cast<int>(requests_.size());
    for (std::size_t i = 0; i < requests_.size(); ++i) calls_[i].start(&requests_[i]);
    if (together) {
      MPI_Waitall(count, requests_.data(), MPI_STATUSES_IGNORE);
      return;
    }
    for (int i = 0; i < count; i += 2) {
      MPI_Wait(&requests_[static_cast<std::size_t>((7 * rank + i) % count)], MPI_STATUS_IGNORE);
    }
    for (int index = 0; index != MPI_UNDEFINED;) MPI_Waitany(count, requests_.data(), &index, MPI_STATUS_IGNORE);
  }

  std::int64_t wrong() const {
    std::int64_t wrong = 0;
    for (const Call& call : calls_) wrong += call.wrong();
    return wrong;
  }

 private:
  std::vector<MPI_Request> requests_;
  std::vector<Call> calls_;
};

}  // namespace

int main(int argc, char** argv) {
  begin(argc, argv, 7, "mpi_outstanding_loop KIND CALLS together|one_by_one SECONDS WARMUP BYTES...");
  std::array<MPI_Comm, 4> comms{};
  for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const bool together = std::string(argv[3]) == "together";
  for (int i = 6; i < argc; ++i) {
    const std::int64_t bytes = std::atoll(argv[i]);
    Outstanding calls(argv[1], std::atoi(argv[2]), bytes, comms);
    measure(
        bytes, std::atof(argv[4]), std::atoi(argv[5]), [&] { calls.perform(together); }, [&] { return calls.wrong(); });
  }
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
  MPI_Finalize();
}
