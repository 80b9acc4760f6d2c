#pragma once
// Symbols are hidden unless they carry this mark: what it stands on is the interface.
#define STRETTO_API __attribute__((visibility("default")))
