#include "apps/tokenizers/json/json_part.hpp"

#include "apps/common/fail.hpp"

namespace apps {

bool JsonPart::has(const char* key) const { return value_.is_object() && value_.contains(key) && !value_.at(key).is_null(); }

JsonPart JsonPart::at(const char* key) const {
  if (!has(key)) fail_with(fmt::format("no '{}'", key));
  return {value_.at(key), path_, key};
}

std::string JsonPart::text(const char* key) const {
  const JsonPart part = at(key);
  if (!part.value_.is_string()) fail_with(fmt::format("no string for '{}'", key));
  return part.value_.get<std::string>();
}

bool JsonPart::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!value_.at(key).is_boolean()) fail_with(fmt::format("neither true nor false for '{}'", key));
  return value_.at(key).get<bool>();
}

std::int64_t JsonPart::number(const char* key) const {
  const JsonPart part = at(key);
  if (!part.value_.is_number_integer()) fail_with(fmt::format("no whole number for '{}'", key));
  return part.value_.get<std::int64_t>();
}

std::vector<JsonPart> JsonPart::list(const char* key) const {
  const JsonPart part = at(key);
  if (!part.value_.is_array()) fail_with(fmt::format("no list for '{}'", key));
  std::vector<JsonPart> parts;
  for (const nlohmann::json& value : part.value_) parts.emplace_back(value, path_, name_);
  return parts;
}

void JsonPart::fail_with(const std::string& what) const {
  fail(stretto::ErrorCode::io, "{} has {} in its {}.", path_, what, name_);
}

}  // namespace apps
