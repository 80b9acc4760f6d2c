#include "layers/checkpoint/piece_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/fail.hpp"
#include "layers/checkpoint/json_numbers.hpp"
#include "layers/checkpoint/whole_values.hpp"

namespace stretto {
namespace {

bool overlap(const CheckpointPiece& piece, const Parameter& parameter) {
  for (std::size_t d = 0; d < piece.first.size(); ++d) {
    if (piece.first[d] + piece.extents[d] <= parameter.first[d]) return false;
    if (parameter.first[d] + parameter.extents[d] <= piece.first[d]) return false;
  }
  return true;
}

void copy(const SafetensorsReader::View& from, const PieceCopy& which, const Tensor& to) {
  if (from.type == safetensors_type(to.dtype())) {
    const std::size_t bytes = size_of(to.dtype());
    return from.read(which.from, which.count,
                     static_cast<std::byte*>(to.raw()) + static_cast<std::size_t>(which.to) * bytes);
  }
  for (std::int64_t i = 0; i < which.count; ++i) to.set(which.to + i, from.at(which.from + i));
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

void read_elements(const Parameter& parameter, std::int64_t first, std::int64_t count,
                   const std::function<std::string(const std::string&)>& name_of, const CheckpointTensor& saved,
                   CheckpointShards& shards, const Tensor& state, bool may_overflow) {
  const std::string name = name_of(parameter.global_name());
  const Tensor target(state.shape(), state.dtype(), Device::cpu);
  std::vector<PieceCopy> found;
  for (const CheckpointPiece& piece : saved.pieces) {
    const std::vector<PieceCopy> shared = copies(piece, parameter, first, count);
    if (shared.empty()) continue;
    const SafetensorsReader& shard = shards[piece.shard];
    const SafetensorsReader::View view = shard.floats(piece.tensor.empty() ? name : name_of(piece.tensor));
    if (view.elements != piece.count) {
      fail(ErrorCode::io, "{} has {} elements of {}, but its checkpoint's index.json says {}.", shard.path(), view.elements,
           name, piece.count);
    }
    for (const PieceCopy& each : shared) copy(view, each, target);
    found.insert(found.end(), shared.begin(), shared.end());
  }
  std::ranges::sort(found, {}, &PieceCopy::to);
  std::int64_t at = 0;
  for (const PieceCopy& each : found) at = each.to == at ? at + each.count : -1;
  if (at != count) {
    fail(ErrorCode::io,
         "The index.json in {} does not name one shard for each of the {} elements of {} that this rank needs.",
         shards.checkpoint().string(), count, name);
  }
  if (!may_overflow) require_finite(target, name, shards.checkpoint());
  state.copy_from(target);
}

nlohmann::ordered_json json_of_member(const Parameter& parameter, bool counts) {
  return {{"name", parameter.global_name()}, {"first", parameter.first}, {"extents", parameter.extents}, {"counts", counts}};
}

std::vector<SavedMember> saved_members(const nlohmann::ordered_json& members) {
  std::vector<SavedMember> result;
  std::int64_t first = 0;
  for (const nlohmann::ordered_json& member : members) {
    SavedMember& its = result.emplace_back();
    its.name = member.at("name").get<std::string>();
    its.slice.first = shape_from_json(member.at("first"));
    its.slice.extents = shape_from_json(member.at("extents"));
    its.slice.count = elements_of(its.slice.extents);
    its.first = first;
    its.counts = member.at("counts").get<bool>();
    first += std::max<std::int64_t>(0, its.slice.count);
  }
  return result;
}

void add_member(const SavedMember& member, const SafetensorsReader::View& view, std::int64_t begin, std::int64_t end,
                const Parameter& parameter, const Tensor& vector, std::int64_t to) {
  if (!member.counts || parameter.global_name() != member.name || !lies_within(member.slice, parameter.global_shape)) return;
  for (const PieceCopy& copy : copies(member.slice, parameter, 0, parameter.elements())) {
    const std::int64_t from = member.first + copy.from, into = to + copy.to;
    const std::int64_t low = std::max({std::int64_t{0}, begin - from, -into});
    const std::int64_t high = std::min({copy.count, end - from, vector.size() - into});
    for (std::int64_t k = low; k < high; ++k) vector.set(into + k, vector.at(into + k) + view.at(from - begin + k));
  }
}

Tensor in_f32(const SafetensorsReader::View& view) {
  Tensor result({view.elements}, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < view.elements; ++i) result.set(i, view.at(i));
  return result;
}

}  // namespace stretto
