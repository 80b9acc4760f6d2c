#include "stretto/models/adapter_files.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/fail.hpp"
#include "core/files/text_file.hpp"
#include "models/families/family.hpp"
#include "models/families/placed_adapters.hpp"
#include "models/families/written_directory.hpp"
#include "stretto/layers/weight_file.hpp"
#include "stretto/output_file.hpp"

namespace stretto {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* config_name = "adapter_config.json";
constexpr const char* weights_name = "adapter_model.safetensors";
constexpr const char* prefix = "base_model.model.";  // of all names in peft's files

// Keys that say nothing of how adapters compute, or that the model says.
constexpr const char* without_effect[] = {"auto_mapping",   "base_model_name_or_path", "ensure_weight_tying",
                                          "fan_in_fan_out", "inference_mode",          "megatron_core",
                                          "peft_version",   "qalora_group_size",       "revision",
                                          "runtime_config"};
constexpr const char* known[] = {"alpha_pattern",       "bias",       "init_lora_weights", "layers_pattern",
                                 "layers_to_transform", "lora_alpha", "lora_dropout",      "modules_to_save",
                                 "peft_type",           "r",          "rank_pattern",      "target_modules",
                                 "task_type",           "use_rslora"};

bool is_among(const auto& names, const std::string& name) { return std::ranges::find(names, name) != std::end(names); }

std::vector<std::string> texts(const ConfigReader& config, const char* key) {
  const json value = config.value(key, json::array());
  std::vector<std::string> result;
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) config.refuse(key, value, "it must be a list of names");
  for (const json& each : value) {
    if (!each.is_string()) config.refuse(key, value, "it must be a list of names");
    result.push_back(each.get<std::string>());
  }
  return result;
}

template <class Value>
std::vector<std::pair<std::string, Value>> pattern(const ordered_json& config, const char* key, const ConfigReader& reader) {
  std::vector<std::pair<std::string, Value>> result;
  if (!reader.has(key)) return result;
  const ordered_json& value = config[key];
  if (!value.is_object()) reader.refuse(key, json(value), "it must be an object of patterns and numbers");
  for (const auto& [name, number] : value.items()) {
    if (!number.is_number()) reader.refuse(key, json(value), "it must be an object of patterns and numbers");
    result.emplace_back(name, number.template get<Value>());
  }
  return result;
}

std::vector<std::int64_t> layers(const ConfigReader& config) {
  const char* const key = "layers_to_transform";
  const json value = config.value(key, json::array());
  std::vector<std::int64_t> result;
  for (const json& each : value.is_array() ? value : json::array({value})) {
    if (!each.is_number_integer()) config.refuse(key, value, "it must be a list of numbers of layers");
    result.push_back(each.get<std::int64_t>());
  }
  return result;
}

// The rows of peft's tensors that make a parameter of the adapters of this name; none of another one, nor of a frozen one.
ForeignRowsOf rows_of(const Trainer& trainer, const std::string& adapters = {}) {
  std::map<std::string, std::vector<ForeignRows>> rows;
  const DecoderShape& shape = trainer.model().shape();
  for (const PlacedAdapter& each : placed_adapters(trainer.parameters(), trainer.options().adapters, shape, adapters)) {
    const std::string name = prefix + each.module.path;
    rows[each.a->name] = first_rows(*each.a, {name + ".lora_A.weight", each.a->global_shape});
    std::int64_t count = 0;
    for (const ForeignRows& block : each.rows) count += block.count;
    std::vector<ForeignRows>& of_b = rows[each.b->name];
    for (const ForeignRows& block : each.rows) {
      of_b.push_back({{name + ".lora_B.weight", {count, each.b->global_shape.back()}}, block.first, block.count});
    }
  }
  return
      [rows = std::move(rows), shape, trained = adapters.empty()](const Parameter& parameter) -> std::vector<ForeignRows> {
        const auto found = rows.find(parameter.name);
        if (found != rows.end()) return found->second;
        if (!trained || !parameter.trainable) return {};
        std::vector<ForeignRows> whole = foreign_rows(shape, parameter, shape.sequence);
        for (ForeignRows& block : whole) block.tensor.name.insert(0, prefix);
        return whole;
      };
}

}  // namespace

AdapterOptions adapter_options_from_config(const std::string& text, const std::string& file) {
  const ConfigReader config(text, file);
  const ordered_json ordered = ordered_json::parse(text);
  for (const auto& [key, value] : ordered.items()) {
    const bool says_nothing = value.is_null() || value == false || value.empty();
    if (says_nothing || is_among(known, key) || is_among(without_effect, key)) continue;
    config.refuse(key.c_str(), json(value), "adapters of this library have none of it");
  }
  config.expect("peft_type", nullptr, {"LORA"});
  config.expect("task_type", "CAUSAL_LM", {"CAUSAL_LM"});
  config.expect("bias", "none", {"none"});
  config.expect("layers_pattern", nullptr,
                {nullptr, "layers", "h", json::array(), json::array({"layers"}), json::array({"h"})});
  config.expect("init_lora_weights", true, {true, false, "gaussian"});
  AdapterOptions options;
  options.rank = config.number("r", 8);
  options.alpha = config.real("lora_alpha", 8);
  const json dropout = config.value("lora_dropout", 0.0);
  if (!dropout.is_number()) config.refuse("lora_dropout", dropout, "it must be a number");
  options.dropout = dropout.get<double>();
  options.uses_root = config.flag("use_rslora", false);
  options.gaussian = config.value("init_lora_weights") == "gaussian";
  if (config.value("target_modules").is_string() && config.value("target_modules") != "all-linear") {
    options.expression = config.text("target_modules");
  } else {
    options.targets = texts(config, "target_modules");
  }
  options.rank_pattern = pattern<std::int64_t>(ordered, "rank_pattern", config);
  options.alpha_pattern = pattern<double>(ordered, "alpha_pattern", config);
  options.layers_to_transform = layers(config);
  options.modules_to_save = texts(config, "modules_to_save");
  return options;
}

std::string adapter_config_text(const AdapterOptions& options, const DecoderShape& shape, const std::string& base) {
  const auto or_null = [](const auto& list) { return list.empty() ? ordered_json() : ordered_json(list); };
  const auto object = [](const auto& patterns) {
    ordered_json result = ordered_json::object();
    for (const auto& [name, value] : patterns) result[name] = value;
    return result;
  };
  ordered_json targets = options.expression;
  if (options.expression.empty()) {
    std::set<std::string> names(options.targets.begin(), options.targets.end());
    if (names.empty() || names.contains("all-linear")) {
      names.clear();
      for (const LinearModule& module : linear_modules(shape, 0)) {
        AdapterOptions everywhere = options;
        everywhere.layers_to_transform.clear();
        if (adapter_of(everywhere, shape, module)) names.insert(module.path.substr(module.path.rfind('.') + 1));
      }
    }
    targets = names;
  }
  const ordered_json config = {
      {"alpha_pattern", object(options.alpha_pattern)},
      {"base_model_name_or_path", base.empty() ? ordered_json() : ordered_json(base)},
      {"bias", "none"},
      {"fan_in_fan_out", family_name(shape) == "gpt2"},  // whose linear modules have their weights transposed
      {"inference_mode", true},
      {"init_lora_weights", options.gaussian ? ordered_json("gaussian") : ordered_json(true)},
      {"layers_pattern", nullptr},
      {"layers_to_transform", or_null(options.layers_to_transform)},
      {"lora_alpha", options.alpha},
      {"lora_dropout", options.dropout},
      {"modules_to_save", or_null(options.modules_to_save)},
      {"peft_type", "LORA"},
      {"r", options.rank},
      {"rank_pattern", object(options.rank_pattern)},
      {"target_modules", targets},
      {"task_type", "CAUSAL_LM"},
      {"use_rslora", options.uses_root}};
  return config.dump(2) + "\n";
}

AdapterFiles AdapterFiles::of_directory(const std::string& directory) {
  AdapterFiles files;
  files.directory_ = directory;
  const std::string config = directory + "/" + config_name;
  std::string text;
  try {
    text = text_of_file(config, config);
  } catch (const Error& error) {
    fail(ErrorCode::io, "{}", error.what());
  }
  files.options_ = adapter_options_from_config(text, config);
  files.base_ = ConfigReader(text, config).text("base_model_name_or_path", "");
  const std::string weights = directory + "/" + weights_name;
  if (!fs::exists(weights)) {
    fail(ErrorCode::io, "{} has no {}; peft's save_pretrained(..., safe_serialization=True) writes one.", directory,
         weights_name);
  }
  files.source_ = safetensors_weights({weights});
  return files;
}

void AdapterFiles::load(Trainer& trainer, const std::string& name) const {
  const ForeignRowsOf rows = rows_of(trainer, name);
  std::set<std::string> expected;
  for (const auto& parameter : trainer.parameters().all()) {
    for (const ForeignRows& block : rows(*parameter)) expected.insert(block.tensor.name);
  }
  for (const StoredTensor& tensor : source_->tensors()) {
    if (expected.contains(tensor.name)) continue;
    fail(ErrorCode::io, "{} has {}, which is of no adapter of this model; give the model that was adapted.",
         source_->file_of(tensor.name), tensor.name);
  }
  read_weights(trainer.sharded(), trainer.optimizer(), *source_, rows);
}

void save_adapters(Trainer& trainer, const std::string& directory, const std::string& base) {
  const Communicator& world = trainer.mesh().world();
  write_directory(world, directory, "the adapters", [&](const fs::path& unfinished) {
    if (world.rank() == 0) {
      write_output_file(unfinished / config_name,
                        adapter_config_text(trainer.options().adapters, trainer.model().shape(), base));
    }
    write_weights(trainer.sharded(), trainer.optimizer(), unfinished / weights_name, rows_of(trainer), {{"format", "pt"}});
  });
}

void check_adapter_directory(const std::string& directory) { check_new_directory(directory, "the adapters"); }

}  // namespace stretto
