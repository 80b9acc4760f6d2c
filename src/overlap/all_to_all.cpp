#include "stretto/overlap/all_to_all.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "device/memory/range.hpp"
#include "device/stream/kernel_scope.hpp"
#include "overlap/row_shares.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

constexpr int most_chunks_of_block = 16;
constexpr std::int64_t probe_bytes = std::int64_t{1} << 20;

// A tensor's rows, cut into one block for each rank.
class RowBlocks {
 public:
  RowBlocks(const char* what, const Tensor& tensor, const std::vector<std::int64_t>& rows, const Communicator& group)
      : tensor_(tensor), shares_(what, rows, group) {
    require(tensor.rows() == shares_.all(), "{} has {} rows, whose blocks have {} rows together; give a tensor of as many.",
            what, tensor.rows(), shares_.all());
  }
  std::int64_t count(int rank) const { return shares_.count(rank); }
  BlockRows part(int rank, Rows rows) const {
    return {rank, rows.first, rows_of(tensor_, shares_.first(rank) + rows.first, rows.count)};
  }
  BlockRows whole(int rank) const { return part(rank, {0, count(rank)}); }

 private:
  Tensor tensor_;
  RowShares shares_;
};

// The messages of both functions: the partner of each step and the chunks of each block.
class BlockExchange {
 public:
  BlockExchange(const Tensor& input, const std::vector<std::int64_t>& send_rows, const Tensor& output,
                const std::vector<std::int64_t>& receive_rows, const Communicator& group, const Stream& stream,
                const AllToAllOptions& options)
      : group_(group),
        stream_(stream),
        options_(options),
        sent_("The input of an all-to-all", input, send_rows, group),
        received_("The output of an all-to-all", output, receive_rows, group) {
    require(input.dtype() == output.dtype() && input.columns() == output.columns(),
            "An all-to-all got rows of {} {} and a place for rows of {} {}; they must be alike.", input.columns(),
            name(input.dtype()), output.columns(), name(output.dtype()));
    require(sent_.count(rank()) == received_.count(rank()), "Rank {} sends itself {} rows in an all-to-all and expects {}.",
            rank(), sent_.count(rank()), received_.count(rank()));
    require(options.chunks >= 0 && options.seconds_per_row >= 0,
            "An all-to-all got {} chunks and {} s a row; neither can be negative, and 0 leaves it to the library.",
            options.chunks, options.seconds_per_row);
    if (options.chunks == 0 && group.size() > 1) learn_costs(input.columns(), input.dtype());
  }

  int rank() const { return group_.rank(); }
  int steps() const { return group_.size(); }  // steps are 1 to steps() - 1
  int to(int step) const { return around(rank() + step, group_.size()); }
  int from(int step) const { return around(rank() - step, group_.size()); }
  const RowBlocks& sent() const { return sent_; }
  const RowBlocks& received() const { return received_; }
  int pieces(int step) const { return std::max(chunks_of(sent_.count(to(step))), chunks_of(received_.count(from(step)))); }
  // The rows that a step sends or receives in one piece; no rows where the block has fewer pieces.
  BlockRows outgoing(int step, int piece) const { return piece_of(sent_, to(step), piece); }
  BlockRows incoming(int step, int piece) const { return piece_of(received_, from(step), piece); }
  Work start(int step, int piece) const {
    return exchange(group_, outgoing(step, piece).rows, to(step), incoming(step, piece).rows, from(step), stream_,
                    options_.tag);
  }
  void keep_own_block() const {
    as_kernel("copy", [&] { received_.whole(rank()).rows.copy_from(sent_.whole(rank()).rows); });
  }

 private:
  // Time is linear in the bytes, so a probe of one size suffices, and not every number of rows needs a plan of its own.
  void learn_costs(std::int64_t columns, DType dtype) {
    const Estimate probe =
        group_.estimate({Collective::all_to_all, nullptr, nullptr, probe_bytes, DType::u8}, {.method = Algorithm::pairwise});
    const int others = group_.size() - 1;
    const auto row_bytes = static_cast<double>(columns) * static_cast<double>(size_of(dtype));
    row_travels_ = (probe.seconds - probe.overhead) / others / static_cast<double>(probe_bytes) * row_bytes;
    chunk_overhead_ = probe.overhead / others + hand_over_seconds;
  }
  // Assumes that all other blocks have as many rows as this one: both ends of a block know its rows only.
  int chunks_of(std::int64_t rows) const {
    if (options_.chunks > 0) return options_.chunks;
    if (rows == 0) return 1;
    const int others = group_.size() - 1;
    const double all = static_cast<double>(rows) * others;
    const double row_is_computed = options_.seconds_per_row > 0 ? options_.seconds_per_row : row_travels_;
    return chunks_per_block(all * row_is_computed, all * row_travels_, chunk_overhead_, others,
                            static_cast<int>(std::min<std::int64_t>(rows, most_chunks_of_block)));
  }
  BlockRows piece_of(const RowBlocks& blocks, int of, int piece) const {
    const std::int64_t rows = blocks.count(of);
    const int chunks = chunks_of(rows);
    return blocks.part(of, piece < chunks ? chunk_of(rows, chunks, piece) : Rows{rows, 0});
  }

  Communicator group_;
  Stream stream_;
  AllToAllOptions options_;
  RowBlocks sent_, received_;
  double row_travels_ = 0, chunk_overhead_ = 0;  // seconds
};

void compute_on(const BlockRows& part, const ComputeRows& compute) {
  if (part.rows.rows() > 0) compute(part);
}

}  // namespace

void all_to_all_then(const Tensor& input, const std::vector<std::int64_t>& send_rows, const Tensor& output,
                     const std::vector<std::int64_t>& receive_rows, const ComputeRows& compute, const Communicator& group,
                     const Stream& stream, const AllToAllOptions& options) {
  const ProfilerRange range([] { return "all_to_all_then"; });
  const BlockExchange blocks(input, send_rows, output, receive_rows, group, stream, options);
  std::vector<Work> works;
  for (int step = 1; step < blocks.steps(); ++step) {
    for (int i = 0; i < blocks.pieces(step); ++i) works.push_back(blocks.start(step, i));
  }
  blocks.keep_own_block();
  compute_on(blocks.received().whole(blocks.rank()), compute);
  auto next = works.begin();
  for (int step = 1; step < blocks.steps(); ++step) {
    for (int i = 0; i < blocks.pieces(step); ++i) {
      computation().wait(*next++);
      compute_on(blocks.incoming(step, i), compute);
    }
  }
}

void compute_then_all_to_all(const ComputeRows& compute, const Tensor& input, const std::vector<std::int64_t>& send_rows,
                             const Tensor& output, const std::vector<std::int64_t>& receive_rows, const Communicator& group,
                             const Stream& stream, const AllToAllOptions& options) {
  const ProfilerRange range([] { return "compute_then_all_to_all"; });
  const BlockExchange blocks(input, send_rows, output, receive_rows, group, stream, options);
  std::vector<Work> works;
  for (int step = 1; step < blocks.steps(); ++step) {
    for (int i = 0; i < blocks.pieces(step); ++i) {
      compute_on(blocks.outgoing(step, i), compute);
      works.push_back(blocks.start(step, i));
    }
  }
  compute_on(blocks.sent().whole(blocks.rank()), compute);
  blocks.keep_own_block();
  for (const Work& work : works) computation().wait(work);
}

}  // namespace stretto
