#include "device/cpu/matmul_primitive.hpp"

#include <unordered_map>

#include "core/fail.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/product_libraries.hpp"

namespace stretto::kernels::cpu {
namespace {

struct Key {
  Product product;
  DType dtype, dtype_c;
  bool operator==(const Key&) const = default;
};

struct Hash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t part : {key.product.m, key.product.n, key.product.k, std::int64_t{key.product.transpose_a},
                                    std::int64_t{key.product.transpose_b}, std::int64_t{key.product.accumulate},
                                    static_cast<std::int64_t>(key.dtype), static_cast<std::int64_t>(key.dtype_c)}) {
      hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

const dnnl::engine& engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, bool transposed, DType dtype) {
  return {{rows, columns},
          dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32,
          transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1}};
}

class Primitive {
 public:
  explicit Primitive(const Key& key) {
    const Product& p = key.product;
    dnnl::primitive_attr attributes;
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum();
      attributes.set_post_ops(sum);
    }
    const dnnl::memory::desc a = matrix(p.m, p.k, p.transpose_a, key.dtype);
    const dnnl::memory::desc b = matrix(p.k, p.n, p.transpose_b, key.dtype);
    const dnnl::memory::desc c = matrix(p.m, p.n, false, key.dtype_c);
    a_ = dnnl::memory(a, engine(), nullptr);
    b_ = dnnl::memory(b, engine(), nullptr);
    c_ = dnnl::memory(c, engine(), nullptr);
    matmul_ = dnnl::matmul({{a, b, c}, attributes, engine()});
  }

  void run(const dnnl::stream& stream, const void* a, const void* b, void* c) {
    a_.set_data_handle(const_cast<void*>(a));  // NOLINT(cppcoreguidelines-pro-type-const-cast): oneDNN only reads it
    b_.set_data_handle(const_cast<void*>(b));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    c_.set_data_handle(c);
    matmul_.execute(stream, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
  }

 private:
  dnnl::memory a_, b_, c_;
  dnnl::matmul matmul_;
};

// One for each thread: the scratch memory of a oneDNN primitive belongs to the thread that created it.
struct Primitives {
  dnnl::stream stream{engine()};
  std::unordered_map<Key, Primitive, Hash> by_key;
};

// A training step has a few dozen shapes; the limit bounds the memory of a program whose shapes never repeat.
constexpr std::size_t most_primitives = 256;

bool has_instructions(dnnl_cpu_isa_t isa) {
  cap_onednn();
  return (dnnl::dnnl_get_effective_cpu_isa() & isa) == isa;
}

}  // namespace

bool has_matmul_primitive(DType dtype) {
  static const bool bf16_too = has_instructions(dnnl_cpu_isa_avx512_core);
  return dtype == DType::f32 || (dtype == DType::bf16 && bf16_too);
}

bool processor_multiplies_bf16() {
  static const bool yes = has_instructions(dnnl_cpu_isa_avx512_core_bf16);
  return yes;
}

bool has_tile_instructions() {
  static const bool yes = has_instructions(dnnl_cpu_isa_avx512_core_amx);
  return yes;
}

void matmul_primitive(const Product& product, DType dtype, const void* a, const void* b, DType dtype_c, void* c) {
  cap_onednn();
  thread_local Primitives primitives;
  try {
    if (primitives.by_key.size() >= most_primitives) primitives.by_key.clear();
    const Key key{product, dtype, dtype_c};
    primitives.by_key.try_emplace(key, key).first->second.run(primitives.stream, a, b, c);
    primitives.stream.wait();
  } catch (const dnnl::error& error) {
    fail(ErrorCode::internal, "oneDNN cannot multiply [{}, {}] by [{}, {}] in {}: {}.", product.m, product.k, product.k,
         product.n, name(dtype), error.what());
  }
}

}  // namespace stretto::kernels::cpu
