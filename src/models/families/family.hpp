#pragma once
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/fail.hpp"
#include "stretto/models/families.hpp"

namespace stretto {

// Reads keys of a config.json, and refuses those with other values than a Decoder can have.
class ConfigReader {
 public:
  ConfigReader(const std::string& text, const std::string& file);
  ConfigReader(nlohmann::json object, std::string file) : file_(std::move(file)), config_(std::move(object)) {}

  const std::string& file() const { return file_; }
  bool says(const char* key) const { return config_.contains(key); }  // null, too
  bool has(const char* key) const { return says(key) && !config_[key].is_null(); }
  // The value of a key, or `otherwise`, for which transformers takes a key that is not there or null.
  nlohmann::json value(const char* key, const nlohmann::json& otherwise = {}) const {
    return has(key) ? config_[key] : otherwise;
  }
  std::int64_t number(const char* key, std::optional<std::int64_t> otherwise = {}) const;  // of 1 or more
  double real(const char* key, std::optional<double> otherwise = {}) const;                // above 0
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::optional<std::string>& otherwise = {}) const;
  // Throws unless the value is one of these.
  void expect(const char* key, const nlohmann::json& otherwise, std::initializer_list<nlohmann::json> supported) const;
  [[noreturn]] void refuse(const char* key, const nlohmann::json& value, const std::string& instead) const;
  // The reader of an object in this one.
  ConfigReader inside(const char* key) const;

 private:
  std::string file_;
  nlohmann::json config_;
};

// One family, or several that differ in a few keys: a file beside this one.
struct ModelFamily {
  const char* model_type;
  bool (*has)(const DecoderShape& shape);  // the first family of families() that has a shape writes it
  DecoderShape (*read)(const ConfigReader& config);
  nlohmann::ordered_json (*write)(const DecoderShape& shape);  // all but the tokens
  std::vector<ForeignRows> (*rows)(const DecoderShape& shape, const Parameter& parameter, std::int64_t positions);
  // Files of the bare model, without a head, lack this prefix of names.
  const char* prefix;
  bool (*ignores)(const std::string& tensor);  // tensors that transformers ignores, too
};
const std::vector<ModelFamily>& families();
// Throws Error(io), in one sentence that names the file, for a shape of which there can be no model.
void check_shape(const DecoderShape& shape, const std::string& file);
const ModelFamily& family_of(const DecoderShape& shape);

extern const ModelFamily gpt2_family;
extern const ModelFamily llama_family, mistral_family, qwen2_family, qwen3_family;

}  // namespace stretto
