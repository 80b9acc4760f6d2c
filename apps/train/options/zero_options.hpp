#pragma once
#include <CLI/App.hpp>

#include "stretto/layers/sharded_parameters.hpp"

namespace apps {

// Adds the flags that say what data-parallel ranks keep a share of only (ZeRO, ZeRO++), and how far ahead they communicate.
// The options must outlive the app's parsing; Options::check() judges whether they go together.
void add_zero_options(CLI::App& app, stretto::ShardedParameters::Options& sharding);
// Call it after the parsing. Throws Error(invalid_argument) for flags that would have no effect.
void check_zero_options(const CLI::App& app, const stretto::ShardedParameters::Options& sharding);

}  // namespace apps
