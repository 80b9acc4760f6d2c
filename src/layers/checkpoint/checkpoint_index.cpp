#include "layers/checkpoint/checkpoint_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/fail.hpp"
#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/json_numbers.hpp"

namespace stretto {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool lies_within(const CheckpointPiece& piece, const Shape& shape) {
  if (shape.empty() || piece.first.size() != shape.size() || piece.extents.size() != shape.size()) return false;
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t first = piece.first[d], extent = piece.extents[d];
    if (first < 0 || extent < 0 || shape[d] < 0 || first > shape[d] || extent > shape[d] - first) return false;
    if (__builtin_mul_overflow(elements, extent, &elements)) return false;
  }
  return piece.begin >= 0 && piece.count >= 0 && piece.begin <= elements && piece.count <= elements - piece.begin;
}

namespace {

Json json_of(const CheckpointTensors& tensors) {
  Json result = Json::object();
  for (const auto& [name, tensor] : tensors) {
    Json pieces = Json::array();
    for (const CheckpointPiece& piece : tensor.pieces) {
      pieces.push_back({{"shard", piece.shard},
                        {"first", piece.first},
                        {"extents", piece.extents},
                        {"begin", piece.begin},
                        {"count", piece.count}});
      if (!piece.tensor.empty()) pieces.back()["tensor"] = piece.tensor;
    }
    result[name] = {{"shape", tensor.shape}, {"pieces", std::move(pieces)}};
    if (tensor.older > 0) result[name]["older"] = tensor.older;
  }
  return result;
}

Json json_of(const OptimizerKind& optimizer) {
  Json slots = Json::array();
  for (const StateSlot& slot : optimizer.slots) slots.push_back(slot.name);
  return {{"name", optimizer.name}, {"slots", std::move(slots)}};
}

// A checkpoint that names no optimizer is of a version that had AdamW alone.
OptimizerKind optimizer_in(const Json& index) {
  if (!index.contains("optimizer")) return {.name = "adamw", .slots = {{"m"}, {"v"}}};
  const Json& json = index.at("optimizer");
  OptimizerKind optimizer{.name = json.at("name").get<std::string>(), .slots = {}};
  for (const Json& slot : json.at("slots")) optimizer.slots.push_back({slot.get<std::string>()});
  return optimizer;
}

std::optional<std::uint64_t> digest_in(const Json& shard, const fs::path& path) {
  if (!shard.contains("xxh3")) return std::nullopt;
  const std::string text = shard.at("xxh3").get<std::string>();
  std::uint64_t digest = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), digest, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::io, "{} says '{}' for the xxh3 of a shard, which is no hexadecimal number.", path.string(), text);
  }
  return digest;
}

// Throws nlohmann::json::exception, or Error for pieces that cannot be.
CheckpointTensors tensors_of(const Json& json, std::size_t shards, const std::string& path) {
  CheckpointTensors result;
  for (const auto& [name, tensor] : json.items()) {
    CheckpointTensor& its = result[name];
    its.shape = shape_from_json(tensor.at("shape"));
    if (tensor.contains("older")) its.older = whole_number(tensor.at("older"));
    for (const Json& piece : tensor.at("pieces")) {
      its.pieces.push_back({static_cast<std::size_t>(whole_number(piece.at("shard"))), shape_from_json(piece.at("first")),
                            shape_from_json(piece.at("extents")), whole_number(piece.at("begin")),
                            whole_number(piece.at("count")), piece.value("tensor", "")});
      if (!lies_within(its.pieces.back(), its.shape) || its.pieces.back().shard >= shards) {
        fail(ErrorCode::io, "{} describes a piece of {} that lies outside its shape [{}] or in none of {} shards.", path,
             name, fmt::join(its.shape, ", "), shards);
      }
    }
  }
  return result;
}

void keep_replica(CheckpointIndex& index, int replica, const std::string& path) {
  const std::size_t shards = index.shards.size();
  const auto replicas = static_cast<std::size_t>(index.replicas);
  if (index.replicas < 1 || shards % replicas != 0)
    fail(ErrorCode::io, "{} divides {} shards into {} replicas, which cannot be.", path, shards, index.replicas);
  if (replica >= index.replicas)
    fail(ErrorCode::io, "{} has {} replicas, and not one of number {}.", path, index.replicas, replica);
  const std::size_t each = shards / replicas, first = static_cast<std::size_t>(replica) * each;
  const auto begin = index.shards.begin() + static_cast<std::ptrdiff_t>(first);
  index.shards = std::vector<CheckpointIndex::Shard>(begin, begin + static_cast<std::ptrdiff_t>(each));
  for (auto& [name, tensor] : index.tensors) {
    std::erase_if(tensor.pieces,
                  [&](const CheckpointPiece& piece) { return piece.shard < first || piece.shard >= first + each; });
    for (CheckpointPiece& piece : tensor.pieces) piece.shard -= first;
  }
}

}  // namespace

std::string shard_file(std::size_t rank) { return fmt::format("rank_{:05}.safetensors", rank); }

std::string pieces_text(const CheckpointTensors& tensors) { return json_of(tensors).dump(); }

fs::path require_shard(const fs::path& directory, std::size_t rank) {
  fs::path path = directory / shard_file(rank);
  if (!fs::exists(path)) {
    fail(ErrorCode::io, "Rank {} has written {}, but rank 0 cannot see it; give a directory that all hosts share.", rank,
         path.string());
  }
  return path;
}

void index_shards(CheckpointIndex& index, const fs::path& directory, const std::vector<std::int64_t>& digests) {
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const fs::path path = require_shard(directory, i);
    const SafetensorsReader shard(path);
    if (shard.metadata(id_key) != index.id)
      fail(ErrorCode::io, "{} is not what rank {} has just written.", path.string(), i);
    index.shards.push_back({shard_file(i), fs::file_size(path), static_cast<std::uint64_t>(digests[i])});
    try {
      for (auto& [name, tensor] : tensors_of(Json::parse(shard.metadata(pieces_key)), digests.size(), path)) {
        CheckpointTensor& all = index.tensors[name];
        all.shape = tensor.shape;
        all.older = tensor.older;
        all.pieces.insert(all.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
      }
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::io, "The pieces of {} cannot be read again.", path.string());
    }
  }
}

std::string text_of(const CheckpointIndex& index) {
  Json shards = Json::array();
  for (const auto& shard : index.shards) {
    shards.push_back({{"file", shard.file}, {"bytes", shard.bytes}});
    if (shard.digest) shards.back()["xxh3"] = fmt::format("{:016x}", *shard.digest);
  }
  Json json{{"id", index.id},
            {"step", index.step},
            {"optimizer_steps", index.optimizer_steps},
            {"optimizer", json_of(index.optimizer)},
            {"layout", index.layout},
            {"choices", index.choices},
            {"notes", index.notes},
            {"shards", std::move(shards)},
            {"tensors", json_of(index.tensors)}};
  if (index.trained_only) json["trained_only"] = true;
  if (index.replicas > 1) json["replicas"] = index.replicas;
  if (index.has_late) json["late_gradients"] = true;
  if (index.in_flight) json["in_flight"] = true;
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::invalid_argument, "A note of the checkpoint of step {} is no UTF-8 text; give another.", index.step);
  }
}

CheckpointIndex read_index(const fs::path& checkpoint, int replica) {
  const fs::path path = checkpoint / "index.json";
  std::ifstream file;
  if (fs::is_regular_file(path)) file.open(path);
  if (!file.is_open()) fail(ErrorCode::io, "There is no checkpoint in {}: it has no index.json.", checkpoint.string());
  CheckpointIndex index;
  try {
    const Json json = Json::parse(file);
    index.id = json.at("id").get<std::string>();
    index.step = whole_number(json.at("step"));
    index.optimizer_steps = whole_number(json.at("optimizer_steps"));
    index.optimizer = optimizer_in(json);
    index.layout = json.at("layout").get<std::string>();
    index.choices = json.value("choices", "");
    index.trained_only = json.value("trained_only", false);
    index.replicas =
        json.contains("replicas")
            ? static_cast<int>(std::min<std::int64_t>(whole_number(json.at("replicas")), std::numeric_limits<int>::max()))
            : 1;
    index.has_late = json.value("late_gradients", false);
    index.in_flight = json.value("in_flight", false);
    index.notes = json.at("notes").get<std::map<std::string, std::string>>();
    for (const Json& shard : json.at("shards")) {
      index.shards.push_back({shard.at("file").get<std::string>(),
                              static_cast<std::uint64_t>(whole_number(shard.at("bytes"))), digest_in(shard, path)});
      if (index.shards.back().file != shard_file(index.shards.size() - 1)) {
        fail(ErrorCode::io, "{} names a shard '{}' where {} belongs.", path.string(), index.shards.back().file,
             shard_file(index.shards.size() - 1));
      }
    }
    index.tensors = tensors_of(json.at("tensors"), index.shards.size(), path);
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::io, "{} is cut off or does not describe a checkpoint.", path.string());
  }
  keep_replica(index, replica, path.string());
  if (index.step < 0 || index.optimizer_steps < 0) {
    fail(ErrorCode::io, "{} says step {} after {} steps of the optimizer, which cannot be.", path.string(), index.step,
         index.optimizer_steps);
  }
  const std::string name = (checkpoint / "").parent_path().filename();
  if (names_a_step(name) && name != checkpoint_name(index.step)) {
    fail(ErrorCode::io, "{} is of step {}, but its directory is named {}; take all files of one checkpoint.", path.string(),
         index.step, name);
  }
  return index;
}

CheckpointShards::CheckpointShards(fs::path checkpoint, const CheckpointIndex& index)
    : checkpoint_(std::move(checkpoint)), index_(index), readers_(index.shards.size()) {}

const SafetensorsReader& CheckpointShards::operator[](std::size_t shard) {
  std::unique_ptr<SafetensorsReader>& reader = readers_.at(shard);
  if (reader) return *reader;
  const auto& [file, bytes, digest] = index_.shards[shard];
  const fs::path path = checkpoint_ / file;
  auto opened = std::make_unique<SafetensorsReader>(path);
  if (opened->metadata(id_key) != index_.id) {
    fail(ErrorCode::io, "{} belongs to another checkpoint than the index.json beside it; take all files of one checkpoint.",
         path.string());
  }
  if (opened->metadata(shard_key) != file) {
    fail(ErrorCode::io, "{} was saved as {}; give the shards of the checkpoint their names back.", path.string(),
         opened->metadata(shard_key));
  }
  const std::uint64_t found = fs::file_size(path);
  if (found != bytes) {
    fail(ErrorCode::io, "{} has {} bytes, but its checkpoint's index.json says {}: it is cut off.", path.string(), found,
         bytes);
  }
  if (digest && digest_of_file(path) != *digest) {
    fail(ErrorCode::io,
         "{} has another checksum than its checkpoint's index.json says: its bytes have changed since it was "
         "saved; take another checkpoint.",
         path.string());
  }
  return *(reader = std::move(opened));
}

}  // namespace stretto
