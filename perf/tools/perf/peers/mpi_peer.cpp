#include "perf/peers/mpi_peer.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>

#include "common/fail.hpp"
#include "stretto/mpi.hpp"

namespace perf {

using stretto::Collective;
using stretto::DType;
using stretto::ReduceOp;

namespace {

std::optional<MPI_Datatype> type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::i8: return MPI_INT8_T;
    case DType::u8: return MPI_UINT8_T;
    case DType::i32: return MPI_INT32_T;
    case DType::u32: return MPI_UINT32_T;
    case DType::i64: return MPI_INT64_T;
    case DType::u64: return MPI_UINT64_T;
    default: return std::nullopt;
  }
}

// Collectives that only move data use a type of the same size.
MPI_Datatype moved_type(DType dtype) {
  if (const auto type = type_of(dtype)) return *type;
  return size_of(dtype) == 2 ? MPI_UINT16_T : MPI_UINT8_T;
}

std::optional<MPI_Op> operator_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return MPI_SUM;
    case ReduceOp::prod: return MPI_PROD;
    case ReduceOp::min: return MPI_MIN;
    case ReduceOp::max: return MPI_MAX;
    default: return std::nullopt;
  }
}

// Counts and displacements of MPI are ints.
struct Shares {
  std::vector<int> counts, offsets;
  void add(std::int64_t count) {
    offsets.push_back(counts.empty() ? 0 : offsets.back() + counts.back());
    counts.push_back(static_cast<int>(count));
  }
};

class MpiPeer : public Peer {
 public:
  MpiPeer() { MPI_Comm_rank(MPI_COMM_WORLD, &rank_); }

  const char* name() const override { return "mpi"; }

  std::string version() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string all(text.data(), length);
    return all.substr(0, all.find(','));
  }

  bool can(const Case& test_case, bool in_place) const override {
    if (test_case.bytes() / static_cast<std::int64_t>(size_of(test_case.dtype)) > INT_MAX) return false;
    // In place, MPI writes a rank's share to the beginning of its input instead of the share's own offset.
    if (in_place && (!can_be_in_place(*test_case.test) || test_case.test->collective == Collective::reduce_scatter))
      return false;
    return !reduces(test_case.test->collective) || (type_of(test_case.dtype) && operator_of(test_case.op));
  }

  void perform(const Case& test_case, bool in_place, const void* input, void* output) override {
    const auto all = MPI_COMM_WORLD;
    const MPI_Datatype type = moved_type(test_case.dtype);
    const MPI_Op op = operator_of(test_case.op).value_or(MPI_OP_NULL);
    const int count = static_cast<int>(test_case.count);
    const bool root = rank_ == test_case.root;
    const void* const from = in_place ? MPI_IN_PLACE : input;
    switch (test_case.test->collective) {
      case Collective::all_reduce: MPI_Allreduce(from, output, count, type, op, all); break;
      case Collective::reduce_scatter:
        if (test_case.test->uneven) {
          MPI_Reduce_scatter(input, output, shares(test_case).counts.data(), type, op, all);
        } else {
          MPI_Reduce_scatter_block(input, output, count, type, op, all);
        }
        break;
      case Collective::all_gather:
        if (test_case.test->uneven) {
          const Shares to = shares(test_case);
          MPI_Allgatherv(from, to.counts[rank_], type, output, to.counts.data(), to.offsets.data(), type, all);
        } else {
          MPI_Allgather(from, count, type, output, count, type, all);
        }
        break;
      case Collective::all_to_all:
        if (test_case.test->uneven) {
          Shares sends;
          Shares receives;
          for (int other = 0; other < test_case.ranks; ++other) {
            sends.add(test_case.sent(rank_, other));
            receives.add(test_case.sent(other, rank_));
          }
          MPI_Alltoallv(input, sends.counts.data(), sends.offsets.data(), type, output, receives.counts.data(),
                        receives.offsets.data(), type, all);
        } else {
          MPI_Alltoall(input, count, type, output, count, type, all);
        }
        break;
      case Collective::broadcast:
        // MPI_Bcast has one buffer only: out of place, the root copies.
        if (root && !in_place) std::memcpy(output, input, test_case.count * size_of(test_case.dtype));
        MPI_Bcast(output, count, type, test_case.root, all);
        break;
      case Collective::reduce: MPI_Reduce(root ? from : input, output, count, type, op, test_case.root, all); break;
      case Collective::gather:
        if (test_case.test->uneven) {
          const Shares to = shares(test_case);
          MPI_Gatherv(root ? from : input, to.counts[rank_], type, output, to.counts.data(), to.offsets.data(), type,
                      test_case.root, all);
        } else {
          MPI_Gather(root ? from : input, count, type, output, count, type, test_case.root, all);
        }
        break;
      case Collective::scatter: {
        void* const into = root && in_place ? MPI_IN_PLACE : output;
        if (test_case.test->uneven) {
          const Shares split = shares(test_case);
          MPI_Scatterv(input, split.counts.data(), split.offsets.data(), type, into, split.counts[rank_], type,
                       test_case.root, all);
        } else {
          MPI_Scatter(input, count, type, into, count, type, test_case.root, all);
        }
        break;
      }
      case Collective::send:
        MPI_Sendrecv(input, count, type, (rank_ + 1) % test_case.ranks, 0, output, count, type,
                     (rank_ + test_case.ranks - 1) % test_case.ranks, 0, all, MPI_STATUS_IGNORE);
        break;
      default: MPI_Barrier(all);
    }
  }

 private:
  static Shares shares(const Case& test_case) {
    Shares shares;
    for (const std::int64_t count : test_case.counts) shares.add(count);
    return shares;
  }

  int rank_ = 0;
};

}  // namespace

int run_under_mpi(const stretto::RankBody& body) {
  MPI_Init(nullptr, nullptr);
  const int status = stretto::run(stretto::connect(MPI_COMM_WORLD, true), body);
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);  // MPI_Finalize would wait for ranks that have ended
  MPI_Finalize();
  return status;
}

void restart_under_mpirun(int ranks, char** argv) {
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(ranks)};
#ifdef OMPI_MAJOR_VERSION
  // Ranks that --nproc starts without MPI are as free to share and change cores.
  words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
#endif
  words.emplace_back("/proc/self/exe");
  std::array<char, PATH_MAX> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) > 0) words.back() = self.data();
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  fail(stretto::ErrorCode::unavailable, "--vs mpi needs mpirun, which could not be started ({}); install an MPI.",
       std::strerror(errno));
}

std::unique_ptr<Peer> make_mpi_peer() { return std::make_unique<MpiPeer>(); }

}  // namespace perf
