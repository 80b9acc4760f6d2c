#include "layers/checkpoint/piece_copy.hpp"

#include <algorithm>

namespace stretto {
namespace {

bool overlap(const CheckpointPiece& piece, const Parameter& parameter) {
  for (std::size_t d = 0; d < piece.first.size(); ++d) {
    if (piece.first[d] + piece.extents[d] <= parameter.first[d]) return false;
    if (parameter.first[d] + parameter.extents[d] <= piece.first[d]) return false;
  }
  return true;
}

}  // namespace

// Runs of both come in the order of the whole parameter.
std::vector<PieceCopy> copies(const CheckpointPiece& piece, const Parameter& parameter, std::int64_t range_first,
                              std::int64_t range_count) {
  std::vector<PieceCopy> result;
  if (!overlap(piece, parameter)) return result;
  struct Run {
    std::int64_t at, whole, count;
  };
  std::vector<Run> runs;  // of the range
  for_each_run(parameter, range_first, range_count, [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    runs.push_back({at, whole, count});
  });
  std::size_t next = 0;
  for_each_run(parameter.global_shape, piece.first, piece.extents, piece.begin, piece.count,
               [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
                 while (next < runs.size() && runs[next].whole + runs[next].count <= whole) ++next;
                 for (std::size_t i = next; i < runs.size() && runs[i].whole < whole + count; ++i) {
                   const std::int64_t from = std::max(whole, runs[i].whole);
                   const std::int64_t to = std::min(whole + count, runs[i].whole + runs[i].count);
                   result.push_back({at + from - whole, runs[i].at + from - runs[i].whole, to - from});
                 }
               });
  return result;
}

}  // namespace stretto
