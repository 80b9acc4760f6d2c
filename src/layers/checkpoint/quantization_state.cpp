#include "layers/checkpoint/quantization_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "layers/checkpoint/json_numbers.hpp"
#include "layers/checkpoint/piece_copy.hpp"
#include "layers/first_of_copies.hpp"
#include "layers/sharded/unit_cut.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

struct SavedUnit {
  std::string name;
  std::uint64_t sums = 0;
  std::vector<SavedMember> members;
};

std::vector<SavedUnit> saved_units(const std::string& text, const std::string& path) {
  std::vector<SavedUnit> units;
  try {
    const Json all = Json::parse(text);
    for (const auto& [name, json] : all.items()) {
      units.push_back({name, static_cast<std::uint64_t>(whole_number(json.at("sums"))), saved_members(json.at("members"))});
    }
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::io, "{} does not describe the units of its quantized sums.", path);
  }
  return units;
}

// The errors that a rank of the saving job has fed back to contributions of a unit.
std::optional<SafetensorsReader::View> contributions(const SafetensorsReader& shard, const SavedUnit& unit) {
  const std::string name = error_name(unit.name, Hop::contribution);
  if (!shard.has(name)) return std::nullopt;  // before the first sum
  const SafetensorsReader::View view = shard.tensor(name);
  std::int64_t elements = 0;
  for (const SavedMember& member : unit.members) elements += member.slice.count;
  if (view.type != "F32" || elements < 0 || view.elements < elements) {
    fail(ErrorCode::io, "{} has {} of another size than its unit.", shard.path(), name);
  }
  return view;
}

class QuantizationRestorer {
 public:
  QuantizationRestorer(ShardedParameters& parameters, CheckpointShards& shards)
      : parameters_(parameters),
        shards_(shards),
        members_(cut_units(parameters.parameters(), parameters.mesh().shape(), parameters.options())) {}

  void same_layout(std::size_t rank) {
    const SafetensorsReader& shard = shards_[rank];
    for (const SavedUnit& saved : units_of(shard)) {
      for (std::size_t unit = 0; unit < members_.size(); ++unit) {
        if (name_of(unit) == saved.name) parameters_.unit(unit).continue_sums(saved.sums);
      }
      for (int hop = 0; hop < hops; ++hop) {
        const std::string name = error_name(saved.name, static_cast<Hop>(hop));
        if (!feeds_back() || !shard.has(name)) continue;
        parameters_.errors().restore(saved.name, static_cast<Hop>(hop), in_f32(shard.tensor(name)));
      }
    }
  }

  void other_layout(std::size_t shards) {
    std::vector<Tensor> sums;  // by unit: errors by this rank's elements, if it is the first of its group
    for (std::size_t unit = 0; unit < members_.size(); ++unit) {
      const ShardedUnit& its = parameters_.unit(unit);
      const bool first = feeds_back() && its.ranks() > 1 && its.rank() == 0;
      sums.push_back(first ? Tensor({its.padded_elements()}, DType::f32, Device::cpu) : Tensor());
      if (first) sums.back().zero();
    }
    std::uint64_t most = 0;
    bool any = false;
    for (std::size_t i = 0; i < shards; ++i) {
      const SafetensorsReader& shard = shards_[i];
      for (const SavedUnit& saved : units_of(shard)) {
        most = std::max(most, saved.sums);
        const auto view = contributions(shard, saved);
        any = any || view;
        if (view) add(saved, *view, sums);
      }
    }
    for (std::size_t unit = 0; unit < members_.size(); ++unit) {
      parameters_.unit(unit).continue_sums(most);
      if (any && sums[unit]) parameters_.errors().restore(name_of(unit), Hop::contribution, sums[unit]);
    }
  }

 private:
  static std::vector<SavedUnit> units_of(const SafetensorsReader& shard) {
    const auto metadata = shard.metadata();
    const auto found = metadata.find(units_key);
    return found == metadata.end() ? std::vector<SavedUnit>() : saved_units(found->second, shard.path());
  }
  bool feeds_back() const { return parameters_.options().qgz_error_feedback; }
  const std::string& name_of(std::size_t unit) const {
    return parameters_.parameters().all()[members_[unit].parameters.front()]->name;
  }

  void add(const SavedUnit& saved, const SafetensorsReader::View& view, const std::vector<Tensor>& sums) const {
    for (const SavedMember& member : saved.members) {
      for (std::size_t unit = 0; unit < members_.size(); ++unit) {
        std::int64_t to = 0;
        for (const std::size_t i : members_[unit].parameters) {
          const Parameter& parameter = *parameters_.parameters().all()[i];
          if (sums[unit]) add_member(member, view, 0, view.elements, parameter, sums[unit], to);
          to += parameter.elements();
        }
      }
    }
  }

  ShardedParameters& parameters_;
  CheckpointShards& shards_;
  std::vector<UnitMembers> members_;
};

// Fragments follow each other, so that those that have been exchanged are the first ones.
void restore_outer_errors(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards) {
  if (index.replicas == 1) return;
  const bool same = index.layout == layout_text(parameters);
  const int rank = parameters.mesh().world().rank();
  const SafetensorsReader& shard = shards[same ? static_cast<std::size_t>(rank) : 0];
  for (std::size_t fragment = 0;; ++fragment) {
    const std::string tensor = outer_errors_name(fragment);
    if (!shard.has(error_name(tensor, Hop::contribution))) return;
    if (!same) {
      if (rank == 0) {
        log().warn("{} has errors of quantized changes of weights, which are dropped in another layout.",
                   shards.checkpoint().string());
      }
      return;
    }
    for (int hop = 0; hop < hops; ++hop) {
      const std::string name = error_name(tensor, static_cast<Hop>(hop));
      if (shard.has(name)) parameters.errors().restore(tensor, static_cast<Hop>(hop), in_f32(shard.tensor(name)));
    }
  }
}

}  // namespace

std::string layout_text(const ShardedParameters& parameters) {
  const MeshShape& mesh = parameters.mesh().shape();
  const ShardedParameters::Options& options = parameters.options();
  std::string sizes;
  for (const Axis axis : all_axes) sizes += fmt::format("{} {} ", short_name(axis), mesh[axis]);
  int tiles = 1;
  for (const auto& each : parameters.parameters().all()) tiles = std::max(tiles, each->tiles);
  if (tiles > 1) sizes += fmt::format("tiles {} ", tiles);
  return fmt::format("{}zero {} {} gradients {} units {} hpz {} qwz {} qgz {} nodes {}", sizes,
                     static_cast<int>(options.zero), name(options.dtype), name(options.gradients()), options.bytes_of_unit(),
                     options.hpz_size, name(options.qwz), name(options.qgz),
                     fmt::join(parameters.mesh().world().nodes(), " "));
}

std::string error_name(const std::string& unit, Hop hop) { return fmt::format("error.{}.{}", name(hop), unit); }

std::string outer_errors_name(std::size_t fragment) { return fmt::format("diloco.{}", fragment); }

std::string units_text(const ShardedParameters& parameters) {
  if (parameters.options().qgz == QuantizedFormat::none) return "";
  const auto& all = parameters.parameters().all();
  const std::vector<UnitMembers> units = cut_units(parameters.parameters(), parameters.mesh().shape(), parameters.options());
  Json json = Json::object();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    Json members = Json::array();
    for (const std::size_t i : units[unit].parameters) {
      members.push_back(json_of_member(*all[i], first_of_copies(*all[i], parameters.mesh())));
    }
    json[all[units[unit].parameters.front()]->name] = {{"sums", parameters.unit(unit).sums_so_far()},
                                                       {"members", std::move(members)}};
  }
  return json.dump();
}

void restore_quantization(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards) {
  restore_outer_errors(parameters, index, shards);
  if (parameters.options().qgz == QuantizedFormat::none) return;
  QuantizationRestorer restorer(parameters, shards);
  if (index.layout == layout_text(parameters)) {
    restorer.same_layout(static_cast<std::size_t>(parameters.mesh().world().rank()));
  } else {
    restorer.other_layout(index.shards.size());
  }
}

}  // namespace stretto
