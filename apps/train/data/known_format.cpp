#include "apps/train/data/known_format.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/common/fail.hpp"

namespace apps {

using namespace std::string_view_literals;

namespace {

struct KnownFormat {
  std::string_view magic;
  const char* name;
  const char* way;  // {}: the path
};

constexpr const char* save_by_numpy = "save its tokens by numpy.save() as uint16 or int32";
constexpr std::array<KnownFormat, 13> formats = {{
    {"\x1f\x8b\x08"sv, "is packed by gzip", "unpack it with gzip -dk {}"},
    {"\x28\xb5\x2f\xfd"sv, "is packed by zstd", "unpack it with zstd -d {}"},
    {"BZh91AY&SY"sv, "is packed by bzip2", "unpack it with bzip2 -dk {}"},
    {"\xfd"
     "7zXZ\0"sv,
     "is packed by xz", "unpack it with xz -dk {}"},
    {"\x04\x22\x4d\x18"sv, "is packed by lz4", "unpack it with lz4 -d {}"},
    {"PAR1"sv, "is a table of Parquet",
     R"(write its texts with python3 -c 'import pandas; print(*pandas.read_parquet("{}").text, sep="\n\n")' > text)"},
    {"ARROW1\0\0"sv, "is a table of Arrow",
     R"(write its texts with python3 -c 'import pandas; print(*pandas.read_feather("{}").text, sep="\n\n")' > text)"},
    {"\xff\xff\xff\xff"sv, "is a stream of Arrow, as a data set of Hugging Face's is",
     R"(write its texts with python3 -c 'import datasets; print(*datasets.Dataset.from_file("{}")["text"], sep="\n\n")' > text)"},
    {"PK\x03\x04"sv, "is a zip archive, as torch.save() and numpy.savez() write them", save_by_numpy},
    {"PK\x05\x06"sv, "is an empty zip archive", save_by_numpy},
    {"\x89HDF\r\n\x1a\n"sv, "is of HDF5", save_by_numpy},
    {"\x93NUMPY"sv, "is an array of NumPy's", "stretto-train reads its numbers as tokens with --data-format npy"},
    {"MMIDIDX\0\0"sv, "is an index of Megatron-LM's", "give the .bin file beside it"},
}};
constexpr KnownFormat safetensors = {{}, "holds tensors in safetensors", save_by_numpy};
constexpr KnownFormat json_lines = {
    {},
    "has a JSON object in each line",
    "train on them with --data-format jsonl and a tokenizer, write their texts with jq -r .text {} > text"};

constexpr std::int64_t longest_line = 1 << 20;

std::string beginning(const DataFile& file, std::int64_t bytes) {
  std::string result(static_cast<std::size_t>(std::min(bytes, file.size())), '\0');
  file.read(0, static_cast<std::int64_t>(result.size()), result.data());
  return result;
}

// safetensors begin with the length of a JSON object, and with that.
bool is_safetensors(const DataFile& file, std::string_view begins) {
  std::uint64_t length = 0;
  if (begins.size() < 10 || begins.substr(8, 2) != "{\"") return false;
  std::memcpy(&length, begins.data(), sizeof length);
  return length <= static_cast<std::uint64_t>(file.size()) - 8;
}

bool has_json_lines(const DataFile& file, std::string_view begins) {
  if (!begins.starts_with('{')) return false;
  if (file.path().ends_with(".jsonl")) return true;
  const std::string text = beginning(file, longest_line);
  const std::size_t end = text.find('\n');
  return end != std::string::npos && nlohmann::json::accept(text.substr(0, end));
}

const KnownFormat* known_format(const DataFile& file) {
  const std::string begins = beginning(file, 16);
  for (const KnownFormat& format : formats) {
    if (begins.starts_with(format.magic)) return &format;
  }
  if (is_safetensors(file, begins)) return &safetensors;
  return has_json_lines(file, begins) ? &json_lines : nullptr;
}

}  // namespace

void refuse_known_format(const DataFile& file, const std::string& anyway) {
  const KnownFormat* const format = known_format(file);
  if (format == nullptr) return;
  fail(stretto::ErrorCode::io, "{} {}; {}, or give {} to take its bytes as they are.", file.path(), format->name,
       fmt::format(fmt::runtime(format->way), file.path()), anyway);
}

}  // namespace apps
