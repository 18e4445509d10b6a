"""The version of the package and the llama.cpp commit that it is built from."""

__version__ = "0.1.0"
LLAMA_CPP_COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
