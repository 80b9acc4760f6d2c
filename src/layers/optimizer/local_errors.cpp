#include "layers/optimizer/local_errors.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/parts.hpp"
#include "layers/checkpoint/json_numbers.hpp"
#include "layers/checkpoint/piece_copy.hpp"
#include "layers/checkpoint/quantization_state.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

struct SavedVector {
  std::string errors;  // their name
  int ranks = 1, rank = 0;
  std::int64_t elements = 0;
  std::vector<SavedMember> members;
};

// Empty if the shard describes no vectors.
std::string saved_text(const SafetensorsReader& shard) {
  const auto metadata = shard.metadata();
  for (const char* const key : {local_vectors_key, former_local_vectors_key}) {
    if (const auto found = metadata.find(key); found != metadata.end()) return found->second;
  }
  return "";
}

std::vector<SavedVector> saved_vectors(const SafetensorsReader& shard) {
  const std::string text = saved_text(shard);
  if (text.empty()) return {};
  std::vector<SavedVector> vectors;
  try {
    const Json all = Json::parse(text);
    for (const auto& [name, json] : all.items()) {
      SavedVector& vector = vectors.emplace_back();
      vector.errors = name;
      vector.ranks = static_cast<int>(whole_number(json.at("ranks")));
      vector.rank = static_cast<int>(whole_number(json.at("rank")));
      vector.members = saved_members(json.at("members"));
      for (const SavedMember& member : vector.members) vector.elements += std::max<std::int64_t>(0, member.slice.count);
    }
  } catch (const nlohmann::json::exception&) {
    vectors.clear();
  }
  const bool sound = std::ranges::all_of(
      vectors, [](const SavedVector& each) { return each.rank >= 0 && each.rank < each.ranks && each.elements > 0; });
  if (vectors.empty() || !sound) fail(ErrorCode::io, "{} does not describe the vectors whose errors it has.", shard.path());
  return vectors;
}

std::optional<SafetensorsReader::View> saved_errors(const SafetensorsReader& shard, const SavedVector& vector, Hop hop,
                                                    std::int64_t elements) {
  const std::string name = error_name(vector.errors, hop);
  if (!shard.has(name)) return std::nullopt;
  SafetensorsReader::View view = shard.tensor(name);
  if (view.type != "F32" || view.elements != elements) {
    fail(ErrorCode::io, "{} has {} of another size than its vector.", shard.path(), name);
  }
  return view;
}

// The name of a vector's errors in ShardedParameters::errors().
std::string errors_of(const ShardedParameters& parameters, const LocalGradients& vector) {
  return parameters.options().powersgd.any() ? PowerSGD::error_name(vector) : unsent_momentum(vector);
}

// Whether this rank feeds back errors of the vector at the hop; empty: at any hop.
bool has_errors(const ShardedParameters& parameters, const LocalGradients& vector, std::optional<Hop> hop = {}) {
  return std::ranges::any_of(parameters.errors().entries(),
                             [&, name = errors_of(parameters, vector)](const ErrorFeedback::Entry& each) {
                               return each.tensor == name && each.hop == hop.value_or(each.hop);
                             });
}

// A rank alone has errors only of what it leaves out by itself, such as DeMo.
bool is_described(const ShardedParameters& parameters, const LocalGradients& vector) {
  return vector.group.size() > 1 || has_errors(parameters, vector);
}

class LocalErrors {
 public:
  LocalErrors(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards)
      : parameters_(parameters),
        shards_(shards),
        count_(index.shards.size()),
        is_powersgd_(parameters.options().powersgd.any()) {
    for (const LocalGradients& vector : parameters.local_gradients()) {
      for (const ErrorFeedback::Entry& entry : parameters.errors().entries()) {
        if (entry.tensor != errors_of(parameters, vector)) continue;
        any_wanted_ = true;
        entry.values.zero();
      }
    }
  }

  void none_wanted() {
    const SafetensorsReader& shard = shards_[static_cast<std::size_t>(parameters_.mesh().world().rank()) % count_];
    const std::vector<SavedVector> saved = saved_vectors(shard);
    const auto found = std::ranges::find_if(
        saved, [&](const SavedVector& each) { return shard.has(error_name(each.errors, Hop::contribution)); });
    if (found == saved.end()) return;
    is_powersgd_ = PowerSGD::is_error(found->errors);
    report("all of them");
  }

  // Other schedules may give the stages of a layout other parts. A shard of sums without errors describes no vectors.
  bool has_same_vectors() const {
    const std::string text = saved_text(own_shard());
    return text.empty() || text == local_vectors_text(parameters_);
  }

  void same_layout() {
    const SafetensorsReader& shard = own_shard();
    for (const LocalGradients& vector : parameters_.local_gradients()) {
      if (!is_described(parameters_, vector)) continue;
      const std::string errors = errors_of(parameters_, vector);
      for (int number = 0; number < hops; ++number) {
        const Hop hop = static_cast<Hop>(number);
        const std::string name = error_name(errors, hop);
        if (any_wanted_ && shard.has(name)) {
          parameters_.errors().restore(errors, hop, in_f32(shard.tensor(name)));
        } else if (is_lost(shard.has(name), has_errors(parameters_, vector, hop)) && hop != Hop::node_sum) {
          report("those of " + name);
        }
      }
      if (is_powersgd_) restore_factors(shard, PowerSGD::factor_name(vector));
    }
  }

  void other_layout() {
    struct Sums {
      Tensor contribution, result;
    };
    std::vector<Sums> sums;  // by vector
    for (const LocalGradients& vector : parameters_.local_gradients()) {
      Sums& its = sums.emplace_back();
      if (!is_described(parameters_, vector) || !any_wanted_) continue;
      its.contribution = Tensor::zeros({vector.vector.size()}, DType::f32);
      const std::int64_t part = part_size(vector.vector.size(), vector.group.size(), vector.group.rank());
      if (has_errors(parameters_, vector, Hop::result)) its.result = Tensor::zeros({part}, DType::f32);
    }
    bool any = false, over_nodes = false;
    for (std::size_t i = 0; i < count_; ++i) {
      const SafetensorsReader& shard = shards_[i];
      for (const SavedVector& saved : saved_vectors(shard)) {
        const std::int64_t begin = part_begin(saved.elements, saved.ranks, saved.rank);
        const std::int64_t end = part_begin(saved.elements, saved.ranks, saved.rank + 1);
        over_nodes = over_nodes || shard.has(error_name(saved.errors, Hop::node_sum));
        const auto contribution = saved_errors(shard, saved, Hop::contribution, saved.elements);
        const auto result = saved_errors(shard, saved, Hop::result, end - begin);
        any = any || contribution;
        for (std::size_t v = 0; v < sums.size() && any_wanted_; ++v) {
          const LocalGradients& vector = parameters_.local_gradients()[v];
          if (!sums[v].contribution) continue;
          if (contribution && vector.group.rank() == 0) {
            add(saved, *contribution, 0, saved.elements, vector, sums[v].contribution, 0);
          }
          const std::int64_t own = part_begin(vector.vector.size(), vector.group.size(), vector.group.rank());
          if (result && sums[v].result) add(saved, *result, begin, end, vector, sums[v].result, own);
        }
      }
    }
    const bool travels =
        std::ranges::any_of(parameters_.local_gradients(), [](const LocalGradients& each) { return each.group.size() > 1; });
    if (is_lost(any, any_wanted_) && (any || travels)) report("all of them");
    if (any && over_nodes) report("those of sums over a node");
    for (std::size_t v = 0; v < sums.size(); ++v) {
      if (!sums[v].contribution) continue;
      const std::string errors = errors_of(parameters_, parameters_.local_gradients()[v]);
      parameters_.errors().restore(errors, Hop::contribution, sums[v].contribution);
      if (sums[v].result) parameters_.errors().restore(errors, Hop::result, sums[v].result);
    }
  }

 private:
  const SafetensorsReader& own_shard() const { return shards_[static_cast<std::size_t>(parameters_.mesh().world().rank())]; }

  // A checkpoint of plain sums lacks nothing that PowerSGD would have to add.
  bool is_lost(bool is_saved, bool is_wanted) const { return is_saved != is_wanted && (is_saved || !is_powersgd_); }

  void report(const std::string& which) const {
    log().warn(
        "Of the checkpoint in {}, errors that {} are lost ({}), because it lacks them or this training has no use for them; "
        "training goes on without.",
        shards_.checkpoint().string(),
        is_powersgd_ ? "PowerSGD has yet to add to its sums" : "the optimizer has yet to send of its momentum", which);
  }

  // The errors of another rank do not fit.
  void restore_factors(const SafetensorsReader& shard, const std::string& factors) {
    const std::string name = error_name(factors, Hop::contribution);
    for (const ErrorFeedback::Entry& entry : parameters_.errors().entries()) {
      if (entry.tensor != factors || !shard.has(name)) continue;
      const Tensor saved = in_f32(shard.tensor(name));
      if (saved.size() == entry.values.size()) entry.values.copy_from(saved);
    }
  }

  // Adds elements `begin` to `end` of a saved vector to the part of a vector here that begins at `own`.
  void add(const SavedVector& saved, const SafetensorsReader::View& view, std::int64_t begin, std::int64_t end,
           const LocalGradients& vector, const Tensor& to, std::int64_t own) const {
    for (const SavedMember& member : saved.members) {
      for (const LocalGradients::Piece& piece : vector.pieces) {
        add_member(member, view, begin, end, *parameters_.parameters().all()[piece.parameter], to, piece.first - own);
      }
    }
  }

  ShardedParameters& parameters_;
  CheckpointShards& shards_;
  std::size_t count_;
  bool is_powersgd_;  // whose errors those of the vectors are
  bool any_wanted_ = false;
};

}  // namespace

std::string local_vectors_text(const ShardedParameters& parameters) {
  Json json = Json::object();
  for (const LocalGradients& vector : parameters.local_gradients()) {
    if (!is_described(parameters, vector)) continue;
    Json members = Json::array();
    for (const LocalGradients::Piece& piece : vector.pieces) {
      members.push_back(json_of_member(*parameters.parameters().all()[piece.parameter], piece.counts));
    }
    json[errors_of(parameters, vector)] = {
        {"ranks", vector.group.size()}, {"rank", vector.group.rank()}, {"members", std::move(members)}};
  }
  return json.empty() ? "" : json.dump();
}

void restore_local_errors(ShardedParameters& parameters, const CheckpointIndex& index, CheckpointShards& shards) {
  LocalErrors errors(parameters, index, shards);
  if (parameters.local_gradients().empty()) {
    errors.none_wanted();
  } else if (index.layout == layout_text(parameters) && errors.has_same_vectors()) {
    errors.same_layout();
  } else {
    errors.other_layout();
  }
}

}  // namespace stretto
