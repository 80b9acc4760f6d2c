#include "stretto/layers/adapter.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "core/fail.hpp"

namespace stretto {
namespace {

constexpr const char* all_linear = "all-linear";

bool has_names_of_gpt2(const DecoderShape& shape) {
  return shape.positions == DecoderShape::Positions::learned && kernels::products_of(shape.activation) == 1;
}

// Kept, because a model has many modules and few expressions.
const std::regex& compiled(const std::string& expression) {
  thread_local std::map<std::string, std::regex> known;
  try {
    const auto found = known.find(expression);
    return found != known.end() ? found->second : known.emplace(expression, std::regex(expression)).first->second;
  } catch (const std::regex_error& error) {
    fail(ErrorCode::invalid_argument, "'{}' is no regular expression ({}).", expression, error.what());
  }
}

bool matches_end(const std::string& path, const std::string& pattern) {
  return std::regex_match(path, compiled("(.*\\.)?(" + pattern + ")"));
}

template <class Value>
Value value_by(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& path, Value otherwise) {
  for (const auto& [pattern, value] : patterns) {
    if (matches_end(path, pattern)) return value;
  }
  return otherwise;
}

bool is_target(const AdapterOptions& options, const std::vector<std::string>& names, const std::string& path) {
  if (!options.expression.empty()) return std::regex_match(path, compiled(options.expression));
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return name == all_linear || is_end_of_path(path, name); });
}

std::vector<std::string> targets_of(const AdapterOptions& options, const DecoderShape& shape) {
  return options.targets.empty() ? usual_targets(shape) : options.targets;
}

bool is_in_layers(const AdapterOptions& options, std::int64_t layer) {
  const std::vector<std::int64_t>& layers = options.layers_to_transform;
  return layers.empty() || std::ranges::find(layers, layer) != layers.end();
}

std::map<std::string, Adapter> adapters_by_record(const AdapterOptions& options, const DecoderShape& shape,
                                                  std::int64_t layer) {
  std::map<std::string, Adapter> result;
  if (!options.any()) return result;
  for (const LinearModule& module : linear_modules(shape, layer)) {
    if (const std::optional<Adapter> adapter = adapter_of(options, shape, module)) result[module.record] = *adapter;
  }
  return result;
}

// Each is whole in itself, and has what an adapter without training can have.
void check_others(const AdapterOptions& options, const DecoderShape& shape) {
  std::set<std::string> names;
  for (const auto& [name, other] : options.others) {
    require(!name.empty() && name.find('.') == std::string::npos && names.insert(name).second,
            "Adapters beside the trained ones are named '{}'; give each a name of its own, without a dot.", name);
    require(other.any() && other.others.empty() && other.modules_to_save.empty() && other.base == StoredFormat::plain,
            "The adapters '{}' are beside those that are trained, and can have neither modules that were trained whole{} "
            "nor others beside them, nor a format of the base.",
            name, other.modules_to_save.empty() ? "" : fmt::format(" ({})", fmt::join(other.modules_to_save, ", ")));
    other.check(shape);
  }
}

}  // namespace

bool is_end_of_path(const std::string& path, const std::string& name) {
  return path == name || (path.ends_with(name) && path[path.size() - name.size() - 1] == '.');
}

std::vector<LinearModule> linear_modules(const DecoderShape& shape, std::int64_t layer) {
  std::vector<LinearModule> modules;
  const bool is_gpt2 = has_names_of_gpt2(shape);
  const std::string path = fmt::format("{}{}.", is_gpt2 ? "transformer.h." : "model.layers.", layer);
  const std::string record = fmt::format("h.{}.", layer);
  const auto add = [&](const char* name, const char* of_record) {
    modules.push_back({path + name, record + of_record, layer});
  };
  if (is_gpt2) {
    for (const char* const name : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) add(name, name);
    return modules;
  }
  const bool has_gate = kernels::products_of(shape.activation) > 1;
  add("self_attn.q_proj", "attn.c_attn.q");
  add("self_attn.k_proj", "attn.c_attn.k");
  add("self_attn.v_proj", "attn.c_attn.v");
  add("self_attn.o_proj", "attn.c_proj");
  if (has_gate) add("mlp.gate_proj", "mlp.c_fc.gate");
  add("mlp.up_proj", has_gate ? "mlp.c_fc.up" : "mlp.c_fc");
  add("mlp.down_proj", "mlp.c_proj");
  return modules;
}

std::vector<std::string> usual_targets(const DecoderShape& shape) {
  if (has_names_of_gpt2(shape)) return {"c_attn"};
  return {"q_proj", "v_proj"};
}

std::optional<Adapter> adapter_of(const AdapterOptions& options, const DecoderShape& shape, const LinearModule& module) {
  if (!options.any() || !is_in_layers(options, module.layer)) return std::nullopt;
  if (!is_target(options, targets_of(options, shape), module.path)) return std::nullopt;
  const std::int64_t rank = value_by(options.rank_pattern, module.path, options.rank);
  const double alpha = value_by(options.alpha_pattern, module.path, options.alpha);
  const auto divisor = static_cast<double>(rank);
  return Adapter{rank, alpha / (options.uses_root ? std::sqrt(divisor) : divisor)};
}

AdapterSet adapters_of_block(const AdapterOptions& options, const DecoderShape& shape, std::int64_t layer) {
  AdapterSet set{
      .by_record = adapters_by_record(options, shape, layer), .gaussian = options.gaussian, .dropout = options.dropout};
  for (const auto& [name, other] : options.others) set.others.emplace_back(name, adapters_by_record(other, shape, layer));
  return set;
}

void AdapterOptions::check(const DecoderShape& shape) const {
  require(rank >= 0 && (any() || *this == AdapterOptions{}),
          "Adapters of rank {} are none, or other options of them are given without one; give a rank of 1 or more.", rank);
  if (!any()) return;
  require(alpha > 0, "Adapters with an alpha of {} would change nothing; give a number above 0.", alpha);
  require(dropout >= 0 && dropout < 1, "Adapters cannot drop {} of their inputs; give 0 or more, and less than 1.", dropout);
  require(expression.empty() || targets.empty(), "Adapters got the targets {} and the expression '{}'; leave one out.",
          fmt::join(targets, ", "), expression);
  require(expression.empty() || layers_to_transform.empty(),
          "The expression '{}' says which layers get adapters; leave the numbers of layers out.", expression);
  for (const std::int64_t layer : layers_to_transform) {
    require(layer >= 0 && layer < shape.layers, "There is no layer {} to adapt; the model has layers 0 to {}.", layer,
            shape.layers - 1);
  }
  std::vector<std::string> adapted, known;
  const auto is_found = [](const std::vector<std::string>& paths, const auto& matches) {
    return std::ranges::any_of(paths, matches);
  };
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const LinearModule& module : linear_modules(shape, layer)) {
      const std::string name = module.path.substr(module.path.find_last_of('.') + 1);
      if (std::ranges::find(known, name) == known.end()) known.push_back(name);
      if (adapter_of(*this, shape, module)) adapted.push_back(module.path);
    }
  }
  require(expression.empty() || !adapted.empty(),
          "The expression '{}' matches no module of the model; it must match the "
          "whole of a path like {}.",
          expression, linear_modules(shape, 0).front().path);
  for (const std::string& name : targets_of(*this, shape)) {
    if (!expression.empty() || name == all_linear) continue;
    require(is_found(adapted, [&](const std::string& path) { return is_end_of_path(path, name); }),
            "There is no module {} to adapt; the model has {}, or all-linear.", name, fmt::join(known, ", "));
  }
  const auto check_pattern = [&](const std::string& pattern, double value, const char* of_what) {
    require(value > 0, "The {} {} of {} makes no adapter; give a number above 0.", of_what, value, pattern);
    require(is_found(adapted, [&](const std::string& path) { return matches_end(path, pattern); }),
            "The {} of {} is for no module, because none that it matches has an adapter.", of_what, pattern);
  };
  for (const auto& [pattern, value] : rank_pattern) check_pattern(pattern, static_cast<double>(value), "rank");
  for (const auto& [pattern, value] : alpha_pattern) check_pattern(pattern, value, "alpha");
  check_others(*this, shape);
}

}  // namespace stretto
