// Adapters in peft's files: what their configuration says, and that files do not depend on the layout that wrote them.
#include "stretto/models/adapter_files.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parity/parity.hpp"
#include "stretto/models/model_files.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const AdapterOptions some_adapters{.rank = 3,
                                   .alpha = 6,
                                   .targets = {"q_proj", "v_proj", "down_proj", "gate_proj"},
                                   .rank_pattern = {{"1.self_attn.v_proj", 2}}};

TrainingOptions llama_options(const MeshShape& mesh, ZeroStage zero = ZeroStage::optimizer) {
  TrainingOptions options;
  options.model = llama_shape({.layers = 2, .hidden = 32, .heads = 4, .sequence = 16, .vocabulary = 64, .kv_heads = 2});
  options.mesh = mesh;
  options.sharding.zero = zero;
  options.micro_batch = 1;
  options.global_batch = 4;
  options.adapters = some_adapters;
  return options;
}

void train(Trainer& trainer, int steps) {
  for (int step = 0; step < steps; ++step) trainer.step(parity::text_of_step(trainer.options(), step), 1e-2);
}

void on_mesh(const MeshShape& mesh, const std::function<void(const Mesh&)>& body) {
  run_threads(mesh.ranks(), [&](const Communicator& world) { body(Mesh(world, mesh)); });
}

TEST(AdapterConfig, ComesBackAsItWas) {
  const DecoderShape shape = llama_options({}).model;
  for (const AdapterOptions& options :
       {AdapterOptions{.rank = 8, .targets = {"q_proj", "v_proj"}},
        AdapterOptions{.rank = 4, .alpha = 1.5, .uses_root = true, .gaussian = true, .expression = ".*\\.[01]\\..*q_proj"},
        AdapterOptions{.rank = 4,
        .targets = {"up_proj"},
        .rank_pattern = {{"z", 1}, {"a", 2}},
        .alpha_pattern = {{"up_proj", 0.5}},
        .layers_to_transform = {1},
        .modules_to_save = {"lm_head"}}}) {
    EXPECT_EQ(adapter_options_from_config(adapter_config_text(options, shape, "base"), "file"), options);
  }
  // Resolved, as peft does it.
  EXPECT_EQ(adapter_options_from_config(adapter_config_text({.rank = 1}, shape, ""), "file").targets,
            (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(adapter_options_from_config(adapter_config_text({.rank = 1, .targets = {"all-linear"}}, shape, ""), "file")
                .targets.size(),
            7U);
}

// As peft 0.21 writes it, in the order of its keys.
TEST(AdapterConfig, OfPeftIsRead) {
  const AdapterOptions options = adapter_options_from_config(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
    "base_model_name_or_path": "some/base", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
    "eva_config": null, "exclude_modules": null, "fan_in_fan_out": true, "inference_mode": true, "init_lora_weights": true,
    "layer_replication": null, "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16,
    "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
    "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 8,
    "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
    "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false, "use_qalora": false,
    "use_rslora": false})",
                                                             "file");
  EXPECT_EQ(options, (AdapterOptions{.rank = 8, .alpha = 16, .dropout = 0.05, .targets = {"v_proj", "q_proj"}}));
}

TEST(AdapterConfig, WhatIsNotComputedIsRefusedByName) {
  const auto refused = [](const char* key, const json& value) {
    json config = {{"peft_type", "LORA"}, {"r", 8}, {"target_modules", {"q_proj"}}};
    config[key] = value;
    return sentence_of(ErrorCode::io, [&] { adapter_options_from_config(config.dump(), "a.json"); });
  };
  EXPECT_THAT(refused("use_dora", true), HasSubstr("a.json says true for use_dora"));
  EXPECT_THAT(refused("bias", "all"), HasSubstr("bias"));
  EXPECT_THAT(refused("peft_type", "IA3"), HasSubstr("peft_type"));
  EXPECT_THAT(refused("init_lora_weights", "pissa"), HasSubstr("init_lora_weights"));
  EXPECT_THAT(refused("exclude_modules", json::array({"x"})), HasSubstr("exclude_modules"));
  EXPECT_THAT(refused("r", 0), HasSubstr("for r,"));
  EXPECT_THAT(refused("target_modules", json::array({1})), HasSubstr("target_modules"));
  EXPECT_THAT(refused("rank_pattern", json::array({1})), HasSubstr("rank_pattern"));
  EXPECT_THAT(refused("layers_to_transform", "all"), HasSubstr("layers_to_transform"));
  EXPECT_THAT(refused("something_new", 3), HasSubstr("something_new"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [] { adapter_options_from_config("[]", "a.json"); }), HasSubstr("a.json"));
}

// Files of two layouts are the same byte for byte where the adapters are, and so are those of adapters that were read.
TEST(AdapterFiles, DoNotDependOnTheLayout) {
  const TemporaryDirectory directory;
  const std::string first = directory / "first";
  on_mesh({{Axis::tensor, 2}, {Axis::data, 2}}, [&](const Mesh& mesh) {
    Trainer trainer(mesh, llama_options(mesh.shape(), ZeroStage::values));
    train(trainer, 3);
    save_adapters(trainer, first, "a base");
  });
  const AdapterFiles files = AdapterFiles::of_directory(first);
  EXPECT_EQ(files.base(), "a base");
  const std::unique_ptr<WeightSource> source = safetensors_weights({first + "/adapter_model.safetensors"});
  EXPECT_EQ(source->tensors().size(), 2U * 2 * 4);
  for (const StoredTensor& tensor : source->tensors()) EXPECT_GT(tensor.shape[0] * tensor.shape[1], 0) << tensor.name;
  for (const auto& [mesh, tiles] :
       {std::pair{MeshShape{}, 1}, {MeshShape{{Axis::pipeline, 2}, {Axis::data, 2}}, 1}, {MeshShape{{Axis::data, 2}}, 4}}) {
    const std::string again = directory / std::to_string(mesh.ranks());
    on_mesh(mesh, [&, tiles = tiles](const Mesh& at) {
      TrainingOptions options = llama_options(at.shape(), tiles > 1 ? ZeroStage::values : ZeroStage::optimizer);
      options.tiles = tiles;
      options.adapters = files.options();
      Trainer trainer(at, options);
      AdapterFiles::of_directory(first).load(trainer);
      trainer.optimizer().restore(0);
      save_adapters(trainer, again, files.base());
    });
    for (const char* const file : {"/adapter_config.json", "/adapter_model.safetensors"}) {
      EXPECT_EQ(content_of(again + file), content_of(first + file)) << mesh.ranks() << file;
    }
  }
}

// The logits of an exported model are those of the base with its adapters. The control: of the base alone they are not.
TEST(AdapterFiles, AreMergedIntoExportedWeights) {
  const TemporaryDirectory directory;
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5};
  for (const StoredFormat stored : {StoredFormat::plain, StoredFormat::nf4}) {
    const std::string merged = directory / name(stored);
    Tensor adapted, base;
    on_mesh({{Axis::tensor, 2}}, [&](const Mesh& mesh) {
      TrainingOptions options = llama_options(mesh.shape());
      options.adapters.base = stored;
      Trainer trainer(mesh, options);
      trainer.sharded().store();
      const Tensor before = trainer.next_logits(tokens);
      train(trainer, 3);
      export_hf(trainer, merged, std::nullopt);
      const Tensor after = trainer.next_logits(tokens);
      if (mesh.world().rank() == 0) base = before, adapted = after;
    });
    on_mesh({}, [&](const Mesh& mesh) {
      TrainingOptions options = llama_options({});
      options.adapters = {};
      Trainer trainer(mesh, options);
      const ModelFiles files = ModelFiles::of_directory(merged);
      files.check(options.model);
      files.load(trainer);
      trainer.optimizer().restore(0);
      const Tensor logits = trainer.next_logits(tokens);
      double difference = 0, control = 0;
      for (std::int64_t i = 0; i < logits.size(); ++i) {
        difference = std::max(difference, std::abs(logits.at(i) - adapted.at(i)));
        control = std::max(control, std::abs(logits.at(i) - base.at(i)));
      }
      EXPECT_LT(difference, 1e-5) << name(stored);
      EXPECT_GT(control, 1e-3) << name(stored);
    });
  }
}

// A second adapter is trained beside a first one, which stays as it was, on any layout; the exported model has both.
TEST(AdapterFiles, BesideTrainedOnesStayAsTheyAre) {
  const TemporaryDirectory directory;
  const std::string first = directory / "first";
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5};
  Tensor of_first;
  on_mesh({}, [&](const Mesh& mesh) {
    Trainer trainer(mesh, llama_options({}));
    train(trainer, 3);
    save_adapters(trainer, first, "");
    of_first = trainer.next_logits(tokens);
  });
  TrainingOptions both = llama_options({});
  both.adapters = {.rank = 2, .alpha = 4, .dropout = 0.2, .targets = {"v_proj", "o_proj"}};
  both.adapters.others = {{"style", AdapterFiles::of_directory(first).options()}};
  std::map<std::string, std::vector<double>> logits;
  std::string second;
  for (const MeshShape& mesh : {MeshShape{}, MeshShape{{Axis::tensor, 2}, {Axis::data, 2}}}) {
    const std::string at = directory / std::to_string(mesh.ranks());
    on_mesh(mesh, [&](const Mesh& its) {
      TrainingOptions options = both;
      options.mesh = mesh;
      Trainer trainer(its, options);
      AdapterFiles::of_directory(first).load(trainer, "style");
      trainer.optimizer().restore(0);
      const auto now = [&](const char* what) {
        const Tensor found = trainer.next_logits(tokens);
        if (its.world().rank() != 0) return;
        for (std::int64_t i = 0; i < found.size(); ++i) logits[what + std::to_string(mesh.ranks())].push_back(found.at(i));
      };
      now("begun");
      train(trainer, 3);
      now("trained");
      save_adapters(trainer, at, "");
      export_hf(trainer, at + "-merged", std::nullopt);
      trainer.next_logits({3, 1, 4, 1});  // whose keys and values are kept, and are wrong with other weights
      trainer.weigh_adapters({{"", 0}});
      now("first alone");
      trainer.weigh_adapters({{"style", 0}});
      now("base");
      EXPECT_THAT(sentence_of([&] { trainer.weigh_adapters({{"x", 1}}); }), HasSubstr("There are no adapters 'x'"));
      EXPECT_THAT(sentence_of([&] { trainer.weigh_adapters({{"", NAN}}); }), HasSubstr("cannot count nan times"));
      EXPECT_THAT(sentence_of([&] { AdapterFiles::of_directory(first).load(trainer, "x"); }),
                  HasSubstr("There are no adapters 'x'"));
    });
    for (const char* const each : {"begun", "first alone"}) {
      const std::vector<double>& found = logits.at(each + std::to_string(mesh.ranks()));
      for (std::int64_t i = 0; i < of_first.size(); ++i) {
        EXPECT_NEAR(found[static_cast<std::size_t>(i)], of_first.at(i), 1e-5) << each << ", the first as it was";
      }
    }
    EXPECT_EQ(AdapterFiles::of_directory(at).options().rank, 2);
  }
  EXPECT_EQ(logits.at("begun1"), logits.at("first alone1")) << "a weight of 0 changes no bit";
  EXPECT_NE(logits.at("trained1"), logits.at("first alone1")) << "the control";
  EXPECT_NE(logits.at("base1"), logits.at("first alone1")) << "the control";
  on_mesh({}, [&](const Mesh& mesh) {
    TrainingOptions plain = llama_options({});
    plain.adapters = {};
    Trainer trainer(mesh, plain);
    ModelFiles::of_directory(directory / "4-merged").load(trainer);
    trainer.optimizer().restore(0);
    const Tensor merged = trainer.next_logits(tokens);
    for (std::int64_t i = 0; i < merged.size(); ++i) {
      EXPECT_NEAR(merged.at(i), logits.at("trained4")[static_cast<std::size_t>(i)], 1e-5);
    }
  });
}

TEST(AdapterFiles, OfAnotherModelAreRefusedByName) {
  const TemporaryDirectory directory;
  const std::string files = directory / "adapters";
  on_mesh({}, [&](const Mesh& mesh) {
    Trainer trainer(mesh, llama_options({}));
    save_adapters(trainer, files, "");
  });
  const auto refused = [&](const std::function<void(TrainingOptions&)>& change) {
    std::string sentence;
    on_mesh({}, [&](const Mesh& mesh) {
      TrainingOptions options = llama_options({});
      change(options);
      Trainer trainer(mesh, options);
      sentence = sentence_of([&] { AdapterFiles::of_directory(files).load(trainer); });
    });
    return sentence;
  };
  EXPECT_EQ(refused([](TrainingOptions&) {}), "") << "the control";
  EXPECT_THAT(refused([](TrainingOptions& options) { options.model.layers = 1, options.adapters.rank_pattern = {}; }),
              HasSubstr("which is of no adapter of this model"));
  EXPECT_THAT(refused([](TrainingOptions& options) { options.model.layers = 3; }), HasSubstr("has no tensor"));
  EXPECT_THAT(refused([](TrainingOptions& options) { options.model.hidden = 64; }), HasSubstr("but this model needs"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { AdapterFiles::of_directory(directory / "none"); }),
              HasSubstr("adapter_config.json"));
  std::filesystem::remove(files + "/adapter_model.safetensors");
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { AdapterFiles::of_directory(files); }), HasSubstr("has no adapter_model"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { check_adapter_directory(files); }), HasSubstr("already"));
}

}  // namespace
}  // namespace stretto
