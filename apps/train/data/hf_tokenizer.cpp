#include "apps/train/data/hf_tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "apps/train/data/data_file.hpp"
#include "stretto/output_file.hpp"

namespace apps {

using stretto::write_output_file;

void write_hf_tokenizer(const std::string& directory, const DataOptions& data, std::optional<std::int32_t> end_of_text,
                        std::int64_t positions) {
  if (data.vocabulary_file.empty()) return;
  write_output_file(directory + "/vocab.json", DataFile(data.vocabulary_file).text());
  write_output_file(directory + "/merges.txt", DataFile(data.merges_file).text());
  nlohmann::ordered_json config = {{"tokenizer_class", "GPT2Tokenizer"}, {"model_max_length", positions}};
  config["add_prefix_space"] = false;
  if (end_of_text) config["bos_token"] = config["eos_token"] = config["unk_token"] = "<|endoftext|>";
  write_output_file(directory + "/tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace apps
