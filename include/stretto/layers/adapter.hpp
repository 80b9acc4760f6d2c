#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/layers/decoder_shape.hpp"
#include "stretto/stored_format.hpp"

// LoRA (Hu et al. 2022): linear layers of a frozen model get low-rank adapters, y = x W^T + scale (x A^T) B^T, and these
// alone are trained. Which modules get one, and of what rank and scale, is said as Hugging Face's peft says it; what files
// of peft mean here, too, follows from the functions below.
namespace stretto {

struct STRETTO_API AdapterOptions {
  std::int64_t rank = 0;  // of A and B; 0: no adapters, and everything is trained
  double alpha = 8;
  // In training, the factor A of each module sees each element of the module's input with this probability as 0, and else
  // divided by 1 - dropout. Which, follows from Tokens::draws, the module and the column alone. Less than 1.
  double dropout = 0;
  bool uses_root = false;  // the scale is alpha / sqrt(rank) (rsLoRA; Kalajdzievski 2023) instead of alpha / rank
  bool gaussian = false;   // A begins normal with deviation 1 / rank, instead of uniform in +-1 / sqrt(in); B with zeros
  // Names of modules, or the last parts of their paths: {"q_proj", "v_proj"}. {"all-linear"}: all linear modules of blocks.
  // Empty: usual_targets(), unless there is an expression.
  std::vector<std::string> targets = {};
  std::string expression = {};  // instead of names: a regular expression (ECMAScript's) that matches whole paths
  // For modules whose path, or its last parts, an expression matches: other ranks and alphas. The first that matches counts.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<std::int64_t> layers_to_transform = {};  // numbers of blocks; empty: all
  std::vector<std::string> modules_to_save = {};       // modules that are trained whole beside the adapters: {"lm_head"}
  // The format in which the frozen weights of the linear modules of blocks lie between uses (QLoRA; Dettmers et al. 2023),
  // from ShardedParameters::store() on.
  StoredFormat base = StoredFormat::plain;
  // Adapters of other names on the same base. They are frozen, and drop nothing: each adds what it computes times its weight
  // (Decoder::weigh_adapters()). They begin with zeros; AdapterFiles::load() reads one.
  std::vector<std::pair<std::string, AdapterOptions>> others = {};

  bool any() const { return rank > 0; }
  bool operator==(const AdapterOptions&) const = default;
  // Throws Error(invalid_argument), in one sentence, for numbers that make no adapter, for a target, pattern or layer that
  // no module of such a model matches, and for options without a rank. Names to save are checked by the model.
  void check(const DecoderShape& shape) const;
};

// Whether a name is a module's path, or its last parts: "self_attn.q_proj" is of "model.layers.3.self_attn.q_proj".
STRETTO_API bool is_end_of_path(const std::string& path, const std::string& name);

// A linear module of a block, by the names that a path in Hugging Face's transformers and that the records of its adapter
// have: "model.layers.3.self_attn.q_proj", "h.3.attn.c_attn.q" (whose A is "h.3.attn.c_attn.q.lora_A.weight" [rank, in], and
// whose B is "h.3.attn.c_attn.q.lora_B.weight" [out, rank]).
struct LinearModule {
  std::string path, record;
  std::int64_t layer = 0;
};
// The modules of one block, in the order of forward: GPT-2's names where positions are learned and the MLP has no gate, else
// Llama's.
STRETTO_API std::vector<LinearModule> linear_modules(const DecoderShape& shape, std::int64_t layer);

// The targets of peft for such a model: c_attn of a GPT-2, q_proj and v_proj of a Llama.
STRETTO_API std::vector<std::string> usual_targets(const DecoderShape& shape);

struct Adapter {
  std::int64_t rank = 0;
  double scale = 0;
  bool operator==(const Adapter&) const = default;
};
// The adapter that a module of such a model gets, if it gets one.
STRETTO_API std::optional<Adapter> adapter_of(const AdapterOptions& options, const DecoderShape& shape,
                                              const LinearModule& module);

// The factor of what each of several adapters on one base adds, by name; 1 when left out. The trained ones have the name "".
using AdapterWeights = std::map<std::string, double>;

// The adapters of some linear layers, by LinearModule::record.
struct AdapterSet {
  std::map<std::string, Adapter> by_record = {};
  bool gaussian = false;  // AdapterOptions
  double dropout = 0;     // AdapterOptions
  // Those of AdapterOptions::others. Their records are named "h.3.attn.c_attn.q.lora_A.NAME.weight".
  std::vector<std::pair<std::string, std::map<std::string, Adapter>>> others = {};
  std::shared_ptr<const AdapterWeights> weights = {};  // which layers read at each use; null: all count once
};
STRETTO_API AdapterSet adapters_of_block(const AdapterOptions& options, const DecoderShape& shape, std::int64_t layer);

}  // namespace stretto
