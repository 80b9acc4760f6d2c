#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "layers/checkpoint/checkpoint_index.hpp"

namespace stretto {

// Elements that a piece of a checkpoint and a rank's range of the same parameter have in common.
struct PieceCopy {
  std::int64_t from = 0, to = 0, count = 0;  // `from` in the piece, `to` in the range
};
// The range has `range_count` elements of the rank's slice of the parameter, from element `range_first` on. Cost: linear in
// the runs of elements of the piece and of the slice.
std::vector<PieceCopy> copies(const CheckpointPiece& piece, const Parameter& parameter, std::int64_t range_first,
                              std::int64_t range_count);

// Reads one tensor of the saved state of a parameter, such as a moment: `count` elements of the rank's slice, from its
// element `first` on. name_of() makes the tensor's name from the parameter's. Throws Error(io) unless the pieces have each
// element once, and, unless it may overflow, for a number that is not finite.
void read_elements(const Parameter& parameter, std::int64_t first, std::int64_t count,
                   const std::function<std::string(const std::string&)>& name_of, const CheckpointTensor& saved,
                   CheckpointShards& shards, const Tensor& state, bool may_overflow);

// A slice of a parameter in a saved vector of errors, as the metadata of its shard describes it.
struct SavedMember {
  std::string name;        // Parameter::global_name()
  CheckpointPiece slice;   // without `shard`
  std::int64_t first = 0;  // in the vector
  bool counts = false;     // whether the rank that saved it is the first of those with copies of the gradient
};
nlohmann::ordered_json json_of_member(const Parameter& parameter, bool counts);
// Throws nlohmann::json::exception.
std::vector<SavedMember> saved_members(const nlohmann::ordered_json& members);
// `view` holds elements [begin, end) of a saved vector, of which `member` is a slice of a parameter. Adds those that
// `parameter` has, too, to a vector of this rank, in which its slice of the parameter begins at element `to`. Either vector
// may be cut: what is not in both is left out.
void add_member(const SavedMember& member, const SafetensorsReader::View& view, std::int64_t begin, std::int64_t end,
                const Parameter& parameter, const Tensor& vector, std::int64_t to);
Tensor in_f32(const SafetensorsReader::View& view);

}  // namespace stretto
