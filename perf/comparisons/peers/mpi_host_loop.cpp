// mpi_host_loop COLLECTIVE SECONDS WARMUP BYTES... times collectives of the MPI with which it is compiled, on one host: the
// loop of stretto-perf in a program of its own. Rank 0 prints a line with a JSON object for each size. A size is the most
// bytes that a rank has in one buffer. Elements are f32, reductions are sums, and rank 0 is the root; broadcast is in place.
// The collective `communicators` has no size: it duplicates a communicator, splits it in two, and frees what it made.
#include <iterator>
#include <memory>
#include <vector>

#include "mpi_loop.hpp"

namespace {

// An input element of a rank: small integers, whose sums are exact. The period is a prime, so that no part of a buffer looks
// like another.
float value(int of, std::int64_t i) { return static_cast<float>((i + 37 * of) % 251); }
float sum_of_values(std::int64_t i) {
  float sum = 0;
  for (int of = 0; of < ranks; ++of) sum += value(of, i);
  return sum;
}

void make_and_free_communicators() {
  MPI_Comm same;
  MPI_Comm half;
  MPI_Comm_dup(MPI_COMM_WORLD, &same);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Comm_free(&same);
  MPI_Comm_free(&half);
}

std::shared_ptr<float> allocate(std::int64_t count) {
  return {static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64)), std::free};
}

const char* const names[] = {"all_reduce", "reduce_scatter", "all_gather",   "all_to_all",   "broadcast",
                             "gather_v",   "scatter_v",      "all_to_all_v", "communicators"};
enum class Kind {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  gather_v,
  scatter_v,
  all_to_all_v,
  communicators
};
Kind kind_of(const std::string& name) {
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) return static_cast<Kind>(i);
  }
  fail("'" + name + "' is no collective of this program.");
}

class Case {
 public:
  Case(Kind kind, std::int64_t bytes)
      : kind_(kind), whole_(bytes / sizeof(float)), share_(static_cast<int>(whole_ / ranks)) {
    if (kind != Kind::all_reduce && kind != Kind::broadcast) whole_ = share_ * ranks;
    inputs_ = kind == Kind::all_gather || kind == Kind::gather_v ? share_ : whole_;
    outputs_ = kind == Kind::reduce_scatter || kind == Kind::scatter_v ? share_ : whole_;
    for (int i = 0; i < ranks; ++i) counts_.push_back(share_), places_.push_back(i * share_);
    input_ = allocate(inputs_);
    output_ = allocate(outputs_);
    for (std::int64_t i = 0; i < inputs_; ++i) input_.get()[i] = value(rank, i);
    for (std::int64_t i = 0; i < outputs_; ++i) output_.get()[i] = -1;
  }

  void perform() const {
    const auto all = MPI_COMM_WORLD;
    const float* const in = input_.get();
    float* const out = output_.get();
    switch (kind_) {
      case Kind::all_reduce: MPI_Allreduce(in, out, static_cast<int>(whole_), MPI_FLOAT, MPI_SUM, all); break;
      case Kind::reduce_scatter: MPI_Reduce_scatter_block(in, out, share_, MPI_FLOAT, MPI_SUM, all); break;
      case Kind::all_gather: MPI_Allgather(in, share_, MPI_FLOAT, out, share_, MPI_FLOAT, all); break;
      case Kind::all_to_all: MPI_Alltoall(in, share_, MPI_FLOAT, out, share_, MPI_FLOAT, all); break;
      case Kind::broadcast: MPI_Bcast(rank == 0 ? input_.get() : out, static_cast<int>(whole_), MPI_FLOAT, 0, all); break;
      case Kind::gather_v: MPI_Gatherv(in, share_, MPI_FLOAT, out, counts_.data(), places_.data(), MPI_FLOAT, 0, all); break;
      case Kind::scatter_v:
        MPI_Scatterv(in, counts_.data(), places_.data(), MPI_FLOAT, out, share_, MPI_FLOAT, 0, all);
        break;
      case Kind::all_to_all_v:
        MPI_Alltoallv(in, counts_.data(), places_.data(), MPI_FLOAT, out, counts_.data(), places_.data(), MPI_FLOAT, all);
        break;
      case Kind::communicators: make_and_free_communicators(); break;
    }
  }

  std::int64_t wrong() const {
    std::int64_t wrong = 0;
    const bool has_none =
        kind_ == Kind::communicators || (kind_ == Kind::broadcast && rank == 0) || (kind_ == Kind::gather_v && rank != 0);
    if (has_none) return 0;
    for (std::int64_t i = 0; i < outputs_; ++i) wrong += output_.get()[i] != expected(i);
    return wrong;
  }

 private:
  float expected(std::int64_t i) const {
    switch (kind_) {
      case Kind::all_reduce: return sum_of_values(i);
      case Kind::reduce_scatter: return sum_of_values(static_cast<std::int64_t>(rank) * share_ + i);
      case Kind::all_gather:
      case Kind::gather_v: return value(static_cast<int>(i / share_), i % share_);
      case Kind::all_to_all:
      case Kind::all_to_all_v:
        return value(static_cast<int>(i / share_), static_cast<std::int64_t>(rank) * share_ + i % share_);
      case Kind::broadcast: return value(0, i);
      case Kind::scatter_v: return value(0, static_cast<std::int64_t>(rank) * share_ + i);
      case Kind::communicators: break;
    }
    return 0;
  }

  Kind kind_;
  std::int64_t whole_;
  int share_;
  std::int64_t inputs_ = 0, outputs_ = 0;
  std::shared_ptr<float> input_, output_;
  std::vector<int> counts_, places_;
};

}  // namespace

int main(int argc, char** argv) {
  begin(argc, argv, 5, "mpi_host_loop COLLECTIVE SECONDS WARMUP BYTES...");
  const Kind kind = kind_of(argv[1]);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string text(version, length);
  const std::string first = text.substr(0, text.find_first_of(",\n"));
  if (rank == 0) {
    std::printf("{\"version\": \"");
    for (const char letter : first) std::putchar(letter == '\t' || letter == '"' || letter == '\\' ? ' ' : letter);
    std::printf("\"}\n");
  }
  for (int i = 4; i < argc; ++i) {
    const Case what(kind, std::atoll(argv[i]));
    measure(
        std::atoll(argv[i]), std::atof(argv[2]), std::atoi(argv[3]), [&] { what.perform(); }, [&] { return what.wrong(); });
  }
  MPI_Finalize();
}
