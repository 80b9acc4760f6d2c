#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace apps {

// A part of a tokenizer.json, whose errors name the file and the part: "x/tokenizer.json has no 'vocab' in its model."
class JsonPart {
 public:
  // The value must outlive the part.
  JsonPart(const nlohmann::json& value, std::string path, std::string name)
      : value_(value), path_(std::move(path)), name_(std::move(name)) {}

  const nlohmann::json& value() const { return value_; }
  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }
  // Neither missing nor null.
  bool has(const char* key) const;

  // Throw Error(io) where the value is missing or of another kind.
  JsonPart at(const char* key) const;  // named by its key
  std::string text(const char* key) const;
  bool flag(const char* key, bool otherwise) const;
  std::int64_t number(const char* key) const;
  std::vector<JsonPart> list(const char* key) const;  // named "pre-tokenizer" in "pretokenizers" and the like: as this part
  std::string type() const { return text("type"); }

  // "{path} has {what} in its {name}": for what is damaged, and for what is not served.
  [[noreturn]] void fail_with(const std::string& what) const;

 private:
  const nlohmann::json& value_;
  std::string path_, name_;
};

}  // namespace apps
