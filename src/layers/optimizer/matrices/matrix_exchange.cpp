#include "layers/optimizer/matrices/matrix_exchange.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "layers/numbers_of_ranks.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

std::vector<std::int64_t> begins_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::int64_t{0});
  return begins;
}

const Communicator& stage_of(const ShardedParameters& parameters) {
  return parameters.mesh().over(token_axes | Axis::tensor);
}

}  // namespace

bool gathers_updates(const MeshShape& mesh, const ShardedParameters::Options& options) {
  return options.zero == ZeroStage::none && mesh[Axis::tensor] == 1;
}

// What runs behind the computation needs a communicator of its own.
MatrixExchange::MatrixExchange(const ShardedParameters& parameters)
    : parameters_(parameters),
      group_(parameters.options().updates_behind() ? stage_of(parameters).duplicate("matrices") : stage_of(parameters)),
      matrices_(hidden_matrices(parameters.parameters())),
      owners_(owners_of(matrices_, group_.size())),
      of_(parameters.parameters().all().size()) {
  for (std::size_t i = 0; i < matrices_.size(); ++i) of_[matrices_[i].parameter].push_back(i);
  if (!matrices_.empty()) describe();
}

void MatrixExchange::describe() {
  std::vector<std::int64_t> mine;
  for (const ShardedParameters::Range& range : parameters_.ranges()) {
    const Parameter& parameter = *parameters_.parameters().all()[range.parameter];
    mine.insert(mine.end(), {static_cast<std::int64_t>(range.parameter), static_cast<std::int64_t>(range.unit), range.first,
                             range.count, range.in_share ? 1 : 0, range.owned ? 1 : 0});
    mine.insert(mine.end(), parameter.first.begin(), parameter.first.end());
    mine.insert(mine.end(), parameter.extents.begin(), parameter.extents.end());
  }
  for (const std::vector<std::int64_t>& of_rank : numbers_of_ranks(group_, mine, "ranges of matrices")) {
    std::vector<Described>& described = descriptions_.emplace_back();
    for (const std::int64_t *next = of_rank.data(), *end = next + of_rank.size(); next < end;) {
      Described& its = described.emplace_back();
      its.parameter = static_cast<std::size_t>(next[0]);
      its.unit = static_cast<std::size_t>(next[1]);
      its.first = next[2];
      its.count = next[3];
      its.in_share = next[4] != 0;
      its.owned = next[5] != 0;
      next += 6;
      const std::size_t dimensions = parameters_.parameters().all()[its.parameter]->global_shape.size();
      for (std::size_t d = 0; d < dimensions; ++d) its.slice_first.push_back(*next++);
      for (std::size_t d = 0; d < dimensions; ++d) its.extents.push_back(*next++);
    }
  }
}

void MatrixExchange::adapt() {
  std::vector<bool> whole;
  for (std::size_t unit = 0; unit < parameters_.unit_count(); ++unit) whole.push_back(parameters_.traffic().is_whole(unit));
  if (whole == whole_ || matrices_.empty()) return;
  whole_ = std::move(whole);
  const auto is_whole = [&](const Described& range) { return of_[range.parameter].empty() || whole_[range.unit]; };
  all_update_all_ = gathers_updates(parameters_.mesh().shape(), parameters_.options()) &&
                    std::ranges::all_of(descriptions_[static_cast<std::size_t>(group_.rank())], is_whole);
  in_ = planned([](const Described& range) { return range.owned; });
  out_ = planned([&](const Described& range) { return range.in_share || whole_[range.unit]; }, all_update_all_);
}

// A piece is sent to its owner in the order of the sender's slice, in which the elements of a matrix follow each other. The
// pieces of a rank follow each other in the order of its ranges, both at the rank, in a block for each owner, and at the
// owner, in a block for each rank. The ranges of ranks that all have all elements differ: one block for all of them has the
// order of parameters.
MatrixExchange::Way MatrixExchange::planned(const std::function<bool(const Described&)>& takes_part,
                                            bool one_for_all) const {
  const auto me = static_cast<std::size_t>(group_.rank());
  Way way;
  way.of_owners.resize(descriptions_.size());
  way.of_ranks.resize(descriptions_.size());
  way.strips.resize(matrices_.size());
  for (std::size_t rank = 0; rank < descriptions_.size(); ++rank) {
    if (one_for_all && rank != me) continue;
    std::vector<std::size_t> order(descriptions_[rank].size());
    std::iota(order.begin(), order.end(), 0);
    if (one_for_all) {
      std::ranges::sort(order, {}, [&](std::size_t r) {
        return std::pair(descriptions_[rank][r].parameter, descriptions_[rank][r].first);
      });
    }
    for (const std::size_t r : order) {
      const Described& range = descriptions_[rank][r];
      if (of_[range.parameter].empty() || !takes_part(range)) continue;
      auto its = of_[range.parameter].begin();  // runs come in the order of rows
      const Shape& shape = parameters_.parameters().all()[range.parameter]->global_shape;
      for_each_run(shape, range.slice_first, range.extents, range.first, range.count,
                   [&](std::int64_t to, std::int64_t whole, std::int64_t count) {  // within a row
                     const std::int64_t row = whole / shape.back(), column = whole % shape.back();
                     while (row >= matrices_[*its].first_row + matrices_[*its].rows) ++its;
                     const auto owner = static_cast<std::size_t>(owners_[*its]);
                     if (rank == me) {
                       const bool goes_on =
                           !way.chunks.empty() && way.chunks.back().range == r && way.chunks.back().matrix == *its;
                       if (!goes_on) way.chunks.push_back({r, *its, to, 0, way.of_owners[owner]});
                       way.chunks.back().count += count;
                       way.of_owners[owner] += count;
                     }
                     if (owner != me) return;
                     std::vector<Strip>& strips = way.strips[*its];
                     const std::int64_t own_row = row - matrices_[*its].first_row;
                     const bool is_below = !strips.empty() && strips.back().row + strips.back().rows == own_row &&
                                           strips.back().column == column && strips.back().columns == count &&
                                           strips.back().at + strips.back().rows * count == way.owned;
                     if (is_below) {
                       ++strips.back().rows;
                     } else {
                       strips.push_back({way.owned, own_row, column, 1, count});
                     }
                     way.owned += count;
                     way.of_ranks[rank] += count;
                   });
    }
  }
  const std::vector<std::int64_t> begins = begins_of(way.of_owners);
  for (Chunk& chunk : way.chunks) chunk.at += begins[static_cast<std::size_t>(owners_[chunk.matrix])];
  way.mine = std::accumulate(way.of_owners.begin(), way.of_owners.end(), std::int64_t{0});
  return way;
}

Tensor MatrixExchange::run(Tensor contributed, const Update& update) const {
  const DType dtype = contributed.dtype();
  const Stream stream = computation();
  Tensor received({in_.owned}, dtype);
  stream.wait(
      group_.all_to_all_v(contributed, in_.of_owners, received, in_.of_ranks, stream, {.tag = "matrices to owners"}));
  contributed = {};
  const Tensor outgoing({out_.owned}, dtype);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (owners_[i] != group_.rank()) continue;
    const Tensor values({matrices_[i].rows, matrices_[i].columns}, dtype);
    const auto rows_of = [](const Tensor& matrix, const Strip& strip) {
      return matrix.view(strip.row * matrix.columns(), {strip.rows, matrix.columns()});
    };
    for (const Strip& strip : in_.strips[i]) {
      kernels::copy_columns(received.view(strip.at, {strip.rows, strip.columns}), 0, rows_of(values, strip), strip.column,
                            strip.columns);
    }
    const Tensor result = update(i, values);
    for (const Strip& strip : out_.strips[i]) {
      kernels::copy_columns(rows_of(result, strip), strip.column, outgoing.view(strip.at, {strip.rows, strip.columns}), 0,
                            strip.columns);
    }
  }
  received = {};
  Tensor updated({out_.mine}, dtype);
  const OperationOptions from_owners{.tag = "matrices from owners"};
  // An all-gather crosses the links between hosts once for each host instead of once for each rank.
  stream.wait(all_update_all_ ? group_.all_gather_v(outgoing, updated, out_.of_owners, stream, from_owners)
                              : group_.all_to_all_v(outgoing, out_.of_ranks, updated, out_.of_owners, stream, from_owners));
  return updated;
}

}  // namespace stretto
