#include "stretto/models/families.hpp"

#include <algorithm>

#include "models/families/family.hpp"

namespace stretto {

using nlohmann::json;

ConfigReader::ConfigReader(const std::string& text, const std::string& file) : file_(file) {
  config_ = json::parse(text, nullptr, false);
  if (!config_.is_object()) fail(ErrorCode::io, "{} is no JSON object.", file);
}

void ConfigReader::refuse(const char* key, const json& value, const std::string& instead) const {
  fail(ErrorCode::io, "{} says {} for {}, but {}.", file_, value.dump(-1, ' ', false, json::error_handler_t::replace), key,
       instead);
}

std::int64_t ConfigReader::number(const char* key, std::optional<std::int64_t> otherwise) const {
  const json value = this->value(key, otherwise ? json(*otherwise) : json());
  if (!value.is_number_integer() || value.get<std::int64_t>() < 1) refuse(key, value, "it must be a number of 1 or more");
  return value.get<std::int64_t>();
}

double ConfigReader::real(const char* key, std::optional<double> otherwise) const {
  const json value = this->value(key, otherwise ? json(*otherwise) : json());
  if (!value.is_number() || !(value.get<double>() > 0)) refuse(key, value, "it must be a number above 0");
  return value.get<double>();
}

bool ConfigReader::flag(const char* key, bool otherwise) const {
  const json value = this->value(key, otherwise);
  if (!value.is_boolean()) refuse(key, value, "it must be true or false");
  return value.get<bool>();
}

std::string ConfigReader::text(const char* key, const std::optional<std::string>& otherwise) const {
  const json value = this->value(key, otherwise ? json(*otherwise) : json());
  if (!value.is_string()) refuse(key, value, "it must be a text");
  return value.get<std::string>();
}

ConfigReader ConfigReader::inside(const char* key) const {
  if (!config_[key].is_object()) refuse(key, config_[key], "it must be an object");
  return {config_[key], file_ + ", " + key};
}

void ConfigReader::expect(const char* key, const json& otherwise, std::initializer_list<json> supported) const {
  const json value = this->value(key, otherwise);
  if (std::ranges::any_of(supported, [&](const json& each) { return value == each; })) return;
  refuse(key, value, "models of this library have " + supported.begin()->dump());
}

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> all{gpt2_family, qwen3_family, qwen2_family, mistral_family, llama_family};
  return all;
}

const ModelFamily& family_of(const DecoderShape& shape) {
  for (const ModelFamily& family : families()) {
    if (family.has(shape)) return family;
  }
  fail(ErrorCode::invalid_argument,
       "No family of transformers has a decoder of this norm, activation, positions and biases; export another shape.");
}

std::string family_name(const DecoderShape& shape) { return family_of(shape).model_type; }

void check_shape(const DecoderShape& shape, const std::string& file) {
  try {
    const DecoderShape all = shape.filled();
    all.check_block(1);
    if (all.positions == DecoderShape::Positions::rotary) {
      rotary_frequencies(all.rope_theta, all.head_size, all.rope_scaling, all.sequence);
    }
  } catch (const Error& error) {
    fail(ErrorCode::io, "{} describes no model: {}", file, error.what());
  }
}

DecoderShape decoder_shape_from_config(const std::string& config, const std::string& file) {
  const ConfigReader reader(config, file);
  const std::string type = reader.text("model_type");
  std::string known;
  for (const ModelFamily& family : families()) {
    if (type == family.model_type) {
      const DecoderShape shape = family.read(reader);
      check_shape(shape, file);
      return shape;
    }
    known += std::string(known.empty() ? "" : ", ") + family.model_type;
  }
  reader.refuse("model_type", type, "known are " + known);
}

std::string config_text(const DecoderShape& shape, std::optional<std::int32_t> end_of_text) {
  nlohmann::ordered_json config = family_of(shape).write(shape.filled());
  config["bos_token_id"] = config["eos_token_id"] = end_of_text ? json(*end_of_text) : json();
  config["torch_dtype"] = "float32";
  return config.dump(2) + "\n";
}

std::vector<ForeignRows> foreign_rows(const DecoderShape& shape, const Parameter& parameter, std::int64_t positions) {
  return family_of(shape).rows(shape.filled(), parameter, positions);
}

}  // namespace stretto
