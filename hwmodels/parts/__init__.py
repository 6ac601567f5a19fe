"""A machine from its parts: cards and processors by data sheet, memory and link in the user's words.

    tesla-p40:cpu=xeon-e5-2698v4,ram=128GB
    rtx-4070:cpu=ryzen-5-5600x,ram=64GB@3600x2,link=4.0x8
    m4-max:ram=64GB            none:cpu=epyc-7763,ram=256GB            dgx-spark

The name of a shipped profile keeps its figures, measured ones among them; parts that are named replace the
profile's. A new card or processor is one line of `gpus.csv` or `cpus.csv`.
"""
